"""The settings of a tablet server. Every limit of the role stands here, with its ground."""

from __future__ import annotations

import msgspec

from ebla.storage.errors import InvalidArgument
from ebla.storage.space import LOW_BYTES


class TabletServerOptions(msgspec.Struct, frozen=True):
    """`masters` are addresses, `host` the slot this server is pinned to."""

    masters: tuple[str, ...]
    host: str
    version: str = ""

    # Raft. A leader's death is noticed after 1 to 2 election timeouts; four heartbeats fit into one, so that a busy
    # machine does not look dead, and more would cost an idle one a tenth of a core. The lease is shorter than the
    # timeout by the clock drift that is tolerated.
    raft_heartbeat_s: float = 0.25
    election_s_min: float = 1.0
    lease_s: float = 0.8

    # A peer that has been silent, or out of order, for so long counts as failed: the master replaces it. Long enough for a
    # host to start again, for a copy costs more than that.
    follower_failed_s: float = 60.0

    # Heartbeats to the master: half of Kudu's 1 s, the catalog is small and calls are local.
    heartbeat_s: float = 0.5

    # A server's number is raised this often, at the cost of a small file and of a commit on every server that hears of
    # it. A copy of its directory that is older is recognised.
    seqno_s: float = 60.0

    # Memory. Flush begins at memtable_bytes over all replicas; at twice that, writers are throttled. 32 MiB keeps a
    # server below 400 MB under full load, 160 of them before its first row.
    memtable_bytes: int = 32 << 20
    unapplied_bytes_max: int = 32 << 20

    # A disk on which a flush takes longer hangs: what lies there is not waited for.
    disk_hung_s: float = 10.0

    # Of every disk so much is kept for votes, flushes and deletions: with less left, writes and new replicas are refused. A
    # disk that takes 100 MB/s does not use it up between two looks (engine/space.py).
    disk_reserve_bytes: int = LOW_BYTES

    # The shared log is trimmed beyond this; entries that must live on move to private logs.
    shared_log_bytes: int = 128 << 20
    # What a tablet's log keeps for a peer that is away; past it the peer needs a new copy.
    log_retained_bytes_max: int = 1 << 30
    log_retained_entries_max: int = 200_000

    # Exactly-once answers are kept this long after a client's last write, in log time (engine/log_time.py). The leader's setting counts.
    results_retention_s: float = 3600.0
    results_per_client_max: int = 100_000

    # Every replica's rows are walked once in so long, for damage that reads do not meet: as often as HDFS and disks
    # that scrub themselves do it at most, since it reads everything.
    scrub_s: float = 86_400.0

    # Scans hold LMDB pages: idle ones end after scanner_ttl_s.
    scanners_max: int = 256
    scanner_ttl_s: float = 60.0
    scan_read_rows: int = 8192  # read at a time, between two looks at how large the block is
    scan_block_bytes_max: int = 16_000_000

    # One message to a peer; a single larger entry travels alone.
    append_bytes_max: int = 1 << 20

    # Data of replicas that were deleted or copied over is kept so much of, the newest: enough to look into a mishap, little
    # beside a disk.
    quarantine_bytes_max: int = 10 << 30

    # Tablet copies. `copies_max` to this server and `copy_sessions_max` from it at a time: each holds up to three chunks of
    # 1.8 MB. A session that nobody asks lets go after copy_idle_s: it holds back the log and the pages of its snapshot. What
    # all copies from here may send together is not limited by default (0).
    copies_max: int = 2
    copy_sessions_max: int = 4
    copy_idle_s: float = 60.0
    copy_bytes_per_s: int = 0

    def validate(self) -> None:
        if not 0 < self.lease_s < self.election_s_min:
            raise InvalidArgument(f"lease_s must lie between 0 and election_s_min ({self.election_s_min})")
        if not 0 < self.raft_heartbeat_s <= self.election_s_min / 3:
            raise InvalidArgument("raft_heartbeat_s must be above 0 and at most a third of election_s_min")
        for name in (
            "follower_failed_s",
            "heartbeat_s",
            "seqno_s",
            "results_retention_s",
            "memtable_bytes",
            "unapplied_bytes_max",
            "disk_hung_s",
            "shared_log_bytes",
            "log_retained_bytes_max",
            "log_retained_entries_max",
            "scrub_s",
            "scanner_ttl_s",
            "scan_read_rows",
            "scan_block_bytes_max",
            "append_bytes_max",
            "copies_max",
            "copy_sessions_max",
            "copy_idle_s",
        ):
            if getattr(self, name) <= 0:
                raise InvalidArgument(f"{name} must be above 0")
        if self.quarantine_bytes_max < 0:
            raise InvalidArgument("quarantine_bytes_max must be 0 (keep nothing) or above")
        if self.disk_reserve_bytes < 0:
            raise InvalidArgument("disk_reserve_bytes must be 0 (keep nothing) or above")
        if self.copy_bytes_per_s < 0:
            raise InvalidArgument("copy_bytes_per_s must be 0 (no limit) or above")
        if not self.masters:
            raise InvalidArgument("masters must name one master's address at least")
