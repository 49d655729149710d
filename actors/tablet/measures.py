"""The figures of a tablet server: see actors/figures.py. They describe the whole server, for any
number of tablets; `ebla tablet show` shows a single tablet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple, Protocol

from ebla.actors.figures import Figure, Percentiles, Sheet, counter, gauge
from ebla.actors.messages import COPYING, DELETED
from ebla.actors.tablet.copy.copies import Copies
from ebla.actors.tablet.copy.sources import CopySources
from ebla.actors.tablet.engine.core import CANDIDATE, FOLLOWER, LEADER
from ebla.actors.tablet.engine.replica import FAILED, RUNNING, Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.engine.space import Space
from ebla.actors.tablet.engine.tally import LIMITS, Tally
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.tablet.pacifica.leasing import Leasing
from ebla.actors.tablet.serving.admission import Load
from ebla.actors.tablet.serving.scans import Scans
from ebla.actors.tablet.upkeep.compactor import Compactor
from ebla.actors.tablet.upkeep.scrubber import Scrubber
from ebla.storage.logs.shared_log import SharedLog

ROLES = (LEADER, FOLLOWER, CANDIDATE, FAILED, COPYING, DELETED)


class MeasuredServer(Protocol):
    """A tablet server, as its figures see it."""

    replicas: dict[str, Replica]
    lifecycle: Lifecycle
    rounds: Rounds
    load: Load
    shared: SharedLog
    space: Space
    scans: Scans
    compactor: Compactor
    scrubber: Scrubber
    copies: Copies
    copy_sources: CopySources
    leasing: Leasing
    census: Census

    def hung_disks(self) -> tuple[str, ...]: ...


class Share(NamedTuple):
    """A replica's part of the figures."""

    state: str
    log_bytes: int = 0
    quiescent: bool = False
    unapplied: int = 0
    term: int = 0
    runs: int = 0
    tiers: int = 0
    blocks: int = 0
    debt_bytes: int = 0

    @staticmethod
    def of(replica: Replica) -> Share:
        if replica.state != RUNNING:
            return Share(replica.state)
        core, store = replica.core, replica.store
        return Share(
            core.shown_role,
            replica.log.size_bytes,
            core.stance.quiescent,
            core.commit_index - store.applied.index,
            core.term,
            *(() if store.runs is None else store.runs.counts()),
        )


class Census:
    """The shares of all replicas, by field and by state. Those without events keep theirs: there may be thousands of them."""

    def __init__(self) -> None:
        self.shares: dict[str, Share] = {}
        self._arrange()

    def update(self, replicas: dict[str, Replica], changed: Collection[str]) -> None:
        if not changed:
            return
        for tablet in changed:
            replica = replicas.get(tablet)
            if replica is None:
                self.shares.pop(tablet, None)
            else:
                self.shares[tablet] = Share.of(replica)
        self._arrange()

    def _arrange(self) -> None:
        states, *columns = zip(Share(""), *self.shares.values(), strict=True)
        self.states = Counter(states)
        self.columns: dict[str, tuple[int, ...]] = dict(zip(Share._fields[1:], columns, strict=True))


class Now:
    """The server at this instant, and its replicas by state and by what figures tell of them."""

    def __init__(self, server: MeasuredServer) -> None:
        self.server = server
        server.census.update(server.replicas, server.rounds.unmeasured)
        server.rounds.unmeasured.clear()
        self.states = server.census.states.copy()
        self.states[FAILED] += len(server.lifecycle.broken)
        self.states.update(tombstone.state for tombstone in server.lifecycle.tombstones.values())
        self._columns = server.census.columns

    def sum(self, name: str) -> int:
        return sum(self._columns[name])

    def max(self, name: str) -> int:
        return max(self._columns[name])


STATE: Sheet[Now] = Sheet(
    (),
    gauge(
        "tablet_memtable_bytes",
        "bytes",
        "rows that are not flushed; at the limit, writers wait",
        lambda now: now.server.load.memtable_bytes,
    ),
    gauge(
        "tablet_unapplied_bytes",
        "bytes",
        "writes that are not applied; at the limit, writers wait",
        lambda now: now.server.load.unapplied_bytes,
    ),
    gauge(
        "tablet_shared_log_bytes", "bytes", "entries in the shared log", lambda now: now.server.shared.bytes
    ),
    gauge(
        "tablet_log_bytes",
        "bytes",
        "log entries retained for flushes and for peers",
        lambda now: now.sum("log_bytes"),
    ),
    gauge(
        "tablet_disk_bytes",
        "bytes",
        "size of the directory, measured periodically",
        lambda now: now.server.space.used_bytes,
    ),
    gauge(
        "tablet_disk_free_bytes",
        "bytes",
        "free space on the fullest of the disks",
        lambda now: min((disk.free_bytes for disk in now.server.space.disks), default=0),
    ),
    gauge(
        "tablet_disk_full",
        "0/1",
        "writes are refused until there is space",
        lambda now: now.server.rounds.disk_full or now.server.space.full,
    ),
    gauge(
        "tablet_disk_hung",
        "0/1",
        "a disk does not answer: what is on it is not written, or not flushed",
        lambda now: bool(now.server.hung_disks()),
    ),
    gauge(
        "tablet_scans_open",
        "scans",
        "snapshot scans that clients have open",
        lambda now: now.server.scans.open_count,
    ),
    gauge(
        "tablet_runs",
        "runs",
        "sorted runs of the replicas whose rows are columns",
        lambda now: now.sum("runs"),
    ),
    gauge(
        "tablet_tiers_max",
        "tiers",
        "runs that a read of one key may visit, of the replica with most",
        lambda now: now.max("tiers"),
    ),
    gauge(
        "tablet_blocks",
        "blocks",
        "blocks of these sorted runs",
        lambda now: now.sum("blocks"),
    ),
    gauge(
        "tablet_compaction_debt_bytes",
        "bytes",
        "rows that compactions under way, or due, have yet to merge",
        lambda now: now.sum("debt_bytes"),
    ),
    counter(
        "tablet_compaction_steps",
        "transactions",
        "ranges of keys whose runs were merged",
        lambda now: now.server.compactor.steps,
    ),
    counter(
        "tablet_scrubs",
        "replicas",
        "scrubs: walks over all rows of a replica",
        lambda now: now.server.scrubber.walks,
    ),
    gauge(
        "tablet_scrubs_due",
        "replicas",
        "replicas that wait for a scrub",
        lambda now: now.server.scrubber.due_count(),
    ),
    gauge(
        "tablet_quiescent",
        "replicas",
        "replicas without writes, which send nothing",
        lambda now: now.sum("quiescent"),
    ),
    gauge(
        "tablet_unapplied_entries_max",
        "entries",
        "committed entries that are not applied, of the replica with most",
        lambda now: now.max("unapplied"),
    ),
    gauge(
        "tablet_lease_held",
        "0/1",
        "this server has a lease; one without PacificA replicas asks for none",
        lambda now: now.server.leasing.holds(),
    ),
    gauge(
        "tablet_term_max",
        "",
        "the highest term or ballot of any replica",
        lambda now: now.max("term"),
    ),
)

TALLY: Sheet[Tally] = Sheet(
    (),
    counter("tablet_writes", "writes", "batches of rows taken into the log as leader", lambda t: t.admitted),
    counter(
        "tablet_rows_applied", "rows", "rows of committed batches, on every replica", lambda t: t.rows_applied
    ),
    counter(
        "tablet_flushes", "flushes", "memtables written to the data of their tablet", lambda t: t.flushes
    ),
    counter(
        "tablet_candidacies",
        "elections",
        "elections in which a replica of this server was a candidate",
        lambda t: t.candidacies,
    ),
    counter(
        "tablet_leaderships",
        "elections",
        "elections that a replica of this server won",
        lambda t: t.leaderships,
    ),
)

REFUSED: Sheet[int] = Sheet(
    ("limit",),
    counter("tablet_writes_refused", "writes", "batches refused at a limit; clients send them again", int),
)

COPIES: Sheet[MeasuredServer] = Sheet(
    (),
    gauge(
        "tablet_copies_running", "copies", "copies to this server that run now", lambda s: len(s.copies.jobs)
    ),
    gauge(
        "tablet_copy_sessions",
        "sessions",
        "copies from this server that run now",
        lambda s: len(s.copy_sources),
    ),
    counter(
        "tablet_copies_done", "copies", "copies to this server that became replicas", lambda s: s.copies.done
    ),
    counter(
        "tablet_copies_failed",
        "copies",
        "copies to this server that failed or were cancelled",
        lambda s: s.copies.failed,
    ),
    counter(
        "tablet_copied_bytes",
        "bytes",
        "bytes received by copies that have ended",
        lambda s: s.copies.copied_bytes,
    ),
    counter(
        "tablet_copy_sent_bytes",
        "bytes",
        "bytes sent to copies from this server",
        lambda s: s.copy_sources.sent_bytes,
    ),
)

BY_ROLE: Sheet[int] = Sheet(("state",), gauge("tablet_replicas", "replicas", ", ".join(ROLES), int))

SYNCS: Sheet[Percentiles] = Sheet(
    ("environment",),
    counter("tablet_syncs", "syncs", "commits with a sync", lambda p: p.count),
    gauge("tablet_sync_p50_ms", "ms", "a commit with its sync, median", lambda p: p.p50),
    gauge("tablet_sync_p99_ms", "ms", "a commit with its sync, 99th percentile", lambda p: p.p99),
)

SHEETS = (STATE, BY_ROLE, TALLY, REFUSED, SYNCS, COPIES)


def measure(server: MeasuredServer) -> Iterator[Figure]:
    now, tally = Now(server), server.rounds.tally
    yield from STATE.read(now)
    for role in ROLES:
        yield from BY_ROLE.read(now.states[role], role)
    yield from TALLY.read(tally)
    for limit in LIMITS:
        yield from REFUSED.read(tally.refused[limit], limit)
    for environment, latencies in tally.syncs.items():
        yield from SYNCS.read(latencies.percentiles(), environment)
    yield from COPIES.read(server)
