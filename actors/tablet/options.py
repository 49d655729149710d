"""The settings of a tablet server: every limit of the role, with its reason."""

from __future__ import annotations

import msgspec

from ebla.actors.detector.limits import DRIFT, DetectorLimits
from ebla.storage.errors import InvalidArgument
from ebla.storage.space import LOW_BYTES
from ebla.storage.tablets.memtable import UNFLUSHED_BYTES_MAX

ZERO_MEANS = {
    "quarantine_bytes_max": "keep nothing",
    "disk_reserve_bytes": "keep nothing",
    "copy_bytes_per_s": "no limit",
}


class TabletServerOptions(msgspec.Struct, frozen=True):
    """The settings of one tablet server. `masters`: addresses; `host`: the slot to which the server is pinned."""

    masters: tuple[str, ...]
    host: str
    version: str = ""

    # Groups of replicas. Followers notice a leader's death after 1 to 2 election timeouts. Four heartbeats fit
    # into one timeout, so that a busy machine does not seem dead; between servers with quiescent groups only
    # two and a half messages do. The lease is shorter than the timeout by the tolerated clock drift.
    leader_heartbeat_s: float = 0.25
    election_s_min: float = 1.0
    lease_s: float = 0.8

    # A group without writes for this long becomes quiescent (engine/quiescence.py). Waking it costs nothing but
    # the heartbeats that it then sends again, so it need not be idle for long.
    quiesce_after_s: float = 2.0

    # Leases for PacificA tablets (actors/detector): a beacon to every master this often, and no service without an
    # acknowledged one for this long. The masters' grace_s is longer; without a master these tablets pause after
    # beacon_lease_s, so a takeover of a master must be shorter than that.
    beacon_s: float = 1.0
    beacon_lease_s: float = 4.0

    # A peer that has been silent, or out of order, for this long counts as failed: the master
    # replaces it. The time is long enough for a host to start again, because a copy costs more.
    follower_failed_s: float = 60.0

    # Heartbeats to the master: half of Kudu's 1 s, because the catalog is small and calls are local.
    heartbeat_s: float = 0.5

    # A server raises its number this often, so that an older copy of its directory is recognised.
    # The cost is a small file, and a commit on every server that receives the new number.
    seqno_s: float = 60.0

    # Memory. Flushes begin at memtable_bytes over all replicas; at twice that, writers are
    # throttled; a replica that has four times that itself applies no more until its flush. 32 MiB
    # keeps a server below 400 MB under full load; it uses 160 MB before its first row.
    memtable_bytes: int = 32 << 20
    unapplied_bytes_max: int = 32 << 20

    # A disk on which a flush takes longer counts as hung: the server does not wait for its tablets.
    disk_hung_s: float = 10.0

    # The space on every disk that is reserved for votes, flushes and deletions: with less left,
    # writes and new replicas are refused. A disk that takes 100 MB/s does not use it up between two
    # measurements (engine/space.py).
    disk_reserve_bytes: int = LOW_BYTES

    # The shared log is trimmed beyond this size; entries that are still needed move to private logs.
    shared_log_bytes: int = 128 << 20
    # A tablet's log keeps at most this for a peer that is away; beyond that the peer needs a copy.
    log_retained_bytes_max: int = 1 << 30
    log_retained_entries_max: int = 200_000

    # Exactly-once answers are kept this long after a client's last write, in log time
    # (engine/log_time.py). The leader's setting counts.
    results_retention_s: float = 3600.0
    results_per_client_max: int = 100_000

    # The scrub period: all rows of a replica are verified this often, to find damage that reads do
    # not meet. It is no shorter than that of HDFS and of disks that scrub themselves, because a
    # scrub reads everything.
    scrub_s: float = 86_400.0

    # Scans hold LMDB pages: idle ones end after scanner_ttl_s.
    scanners_max: int = 256
    scanner_ttl_s: float = 60.0
    scan_read_rows: int = 8192  # read at a time, between two checks of the block's size
    scan_block_bytes_max: int = 16_000_000

    # One message to a peer; a single larger entry travels alone.
    append_bytes_max: int = 1 << 20

    # The quarantine keeps the newest data of replicas that were deleted or copied over, up to this
    # size: enough to investigate a mishap, little compared with a disk.
    quarantine_bytes_max: int = 10 << 30

    # Tablet copies. At a time, `copies_max` run to this server and `copy_sessions_max` from it:
    # each holds up to three chunks of 1.8 MB. A session without requests ends after copy_idle_s,
    # because it retains the log and the pages of its snapshot. `copy_bytes_per_s` limits all copies
    # from this server together; by default (0) they are not limited.
    copies_max: int = 2
    copy_sessions_max: int = 4
    copy_idle_s: float = 60.0
    copy_bytes_per_s: int = 0

    @property
    def poll_s(self) -> float:
        """The time between two checks for the successor of a leadership."""
        return self.leader_heartbeat_s / 10

    @property
    def unflushed_bytes_max(self) -> int:
        """With more in its memtables, a replica applies no further entries until a flush. Writers are throttled before, but
        small updates that are in the log may make many bytes of rows."""
        return min(4 * self.memtable_bytes, UNFLUSHED_BYTES_MAX)

    @property
    def detector(self) -> DetectorLimits:
        """The limits of this server's part of the failure detector."""
        lease_s = self.beacon_lease_s
        return DetectorLimits(beacon_s=self.beacon_s, lease_s=lease_s, grace_s=DRIFT * lease_s)

    def validate(self) -> None:
        self.detector.validate()
        if not 0 < self.lease_s < self.election_s_min:
            raise InvalidArgument(f"lease_s must lie between 0 and election_s_min ({self.election_s_min})")
        if not 0 < self.leader_heartbeat_s <= self.election_s_min / 3:
            raise InvalidArgument("leader_heartbeat_s must be above 0 and at most a third of election_s_min")
        for name, value in msgspec.structs.asdict(self).items():
            if name in ZERO_MEANS and value < 0:
                raise InvalidArgument(f"{name} must be 0 ({ZERO_MEANS[name]}) or above")
            if name not in ZERO_MEANS and isinstance(value, int | float) and value <= 0:
                raise InvalidArgument(f"{name} must be above 0")
        if not self.masters:
            raise InvalidArgument("masters must name one master's address at least")
