"""Invariants of a deployment, and the memory that some of them need.

now      about one state of the whole deployment
since    about this state and earlier ones; the memory is outside of every node, so no fault touches it

An invariant of one state alone, a replica's or the catalog's, is checked when that state has changed since the last check.

    one_leader_per_term            a term of a tablet has one leader, ever
    leaders_have_what_is_committed a leader's log holds every entry that was committed before its term
    entries_can_be_read            no log has dropped an entry that a replica reports to have
    leaders_commit_their_own_term  a leader's commit index only moves to entries of its term (the rest follows from it)
    answers_match                  replicas that applied the same entries would answer retries alike, see applied.py
    logs_match                     two logs with one entry in common are equal up to it (entries chain their history)
    committed_never_changes        a committed entry keeps its index in every replica for ever; with a forced configuration,
                                   on each side of it, see observers/sides.py
    log time keeps its pace        it never goes back, and never runs ahead of the clocks, see log_times.py
    survivors_keep_their_logs      the survivor that leads a forced configuration keeps its whole log
    given-up servers stop serving  a server stops when it is informed that it was given up, see observers/sides.py
    terms_and_votes_only_grow      on disk: the term never falls, and a vote in a term is never changed (an old copy of a
                                   directory may break this; the next but one says that its server is not believed)
    votes_are_given_once           a server answers with one vote per term, over all its starts, see observers/votes.py
    old_copies_are_not_believed    no role takes a process on an old copy for the server whose copy it is
    indexes_are_in_order           flushed <= applied <= committed <= last, and durable <= last
    durable_is_on_disk             an entry that a replica calls durable lies in a log on its disk
    one_reader_at_a_time           no two replicas of a tablet believe at one instant that they may serve reads
    one_master_serves              no two masters believe at one instant that they may answer
    catalogs are well-formed       the master's maps agree with each other
    nothing_is_deleted_unasked     see deletions.py
    promises_are_remembered        a server never forgets its votes and entries, see remembering.py
    tombstones_remember            neither do its tombstones, and only records that a fault damaged are damaged
    members change by the rules    majorities consist of voters, and changes of members are legal, see membership.py
    frozen_masters_cure_nothing    a frozen master asks for no change of members, see levels.py
    pacifica_follows_the_catalog   a primary leads by the catalog, whose voters hold what is committed, see pacifica.py
    pacifica_readers_are_current   a replica serves reads with all that is committed, and while its server lives
    leases_are_recorded            a server has a lease only in an incarnation that the catalog has
    quiescent replicas             a follower has a leader, or wakes; a leader learns who woke, see quiescence.py
    others_are_flushed             a hanging data disk blocks no replica on other disks, see hanging.py
    sessions_keep_their_log        the log keeps the entries that a copy still needs
    ledgers                        see ledgers.py
    lost_disks_are_reported        a server that has lost a data disk can still report its replicas
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ebla.actors.errors import NotLeader, Unavailable
from ebla.actors.master.catalog.invariants import require_sound
from ebla.actors.master.server import ActiveMaster
from ebla.actors.tablet.engine.core import LEADER
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.server import TabletServer
from ebla.chaos.invariants.applied import AppliedLog, answers_match
from ebla.chaos.invariants.deletions import Deletions
from ebla.chaos.invariants.hanging import Unflushed, others_are_flushed
from ebla.chaos.invariants.ledgers import Ledgers
from ebla.chaos.invariants.levels import FrozenMasters
from ebla.chaos.invariants.log_times import LogTimes
from ebla.chaos.invariants.membership import (
    Membership,
    Newcomers,
    anchors_hold,
    elections_have_a_majority,
    is_raft,
)
from ebla.chaos.invariants.pacifica import (
    leases_are_recorded,
    pacifica_follows_the_catalog,
    pacifica_readers_are_current,
)
from ebla.chaos.invariants.quiescence import (
    Leaderless,
    first_awake,
    leaders_learn_who_woke,
    quiescent_followers_have_leaders,
    quiescent_leaders_have_a_majority,
)
from ebla.chaos.invariants.remembering import Remembered
from ebla.chaos.invariants.seen import Facts, Groups, Seen, by_side, facts_of
from ebla.chaos.simulation.deployment import Deployment
from ebla.chaos.simulation.observers.sides import Committed, Entry, newest_mark
from ebla.storage.errors import Corruption, StorageError
from ebla.storage.logs.shared_log import ENTRIES, SEQ_BYTES

A_DAMAGED_RECORD = Corruption("a record")


@dataclass
class Memory:
    applied: AppliedLog
    leaders: dict[tuple[str, int], str] = field(default_factory=dict)
    led_from: dict[tuple[str, int], int] = field(default_factory=dict)  # its commit index when first seen
    committed: Committed = field(default_factory=Committed)
    commit_indexes: dict[int, int] = field(
        default_factory=dict
    )  # by id of the replica object, at the last check
    old_copies: dict[str, str] = field(default_factory=dict)  # addresses of servers on old copies, by start
    log_times: LogTimes = field(default_factory=LogTimes)
    remembered: Remembered = field(default_factory=Remembered)
    membership: Membership = field(default_factory=Membership)
    unflushed: Unflushed = field(default_factory=Unflushed)
    leaderless: Leaderless = field(default_factory=Leaderless)
    newcomers: Newcomers = field(default_factory=Newcomers)
    deletions: Deletions = field(default_factory=Deletions)
    catalog: Facts = ()  # at the last check


class Watch:
    def __init__(self, deployment: Deployment, applied: AppliedLog) -> None:
        self.deployment = deployment
        self.memory = Memory(applied)
        self._known: dict[Replica, Seen] = {}  # keeps the replicas, so that each id stays that of one object
        self.memory.membership.listen(deployment.cluster.network)
        self.memory.committed.listen(deployment)
        self.frozen_masters = FrozenMasters(self._master)
        self.frozen_masters.listen(deployment.cluster.network)
        self.ledgers = Ledgers(deployment, self._master) if deployment.stores else None

    def check(self) -> None:
        """Raise AssertionError for the first invariant that does not hold."""
        servers, master = list(self._servers()), self._master()
        old_copies_are_not_believed(self.deployment, servers, master, self.memory)
        votes_are_given_once(self.deployment, servers)
        for broken in (self.deployment.promises.broken, self.deployment.answers.broken):
            assert not broken, broken
        one_master_serves(self.deployment)
        if self.ledgers is not None:
            self.ledgers.check()
        changed, leaders = self._replicas(servers)
        now = self.deployment.cluster.loop.time()
        for tablet, those in changed.items():
            for seen in those:
                indexes_are_in_order(seen)
                durable_is_on_disk(seen)
                entries_can_be_read(seen)
                if seen.record_changed:
                    terms_and_votes_only_grow(seen, self.memory)
                promises_are_remembered(seen, self.memory)
                one_leader_per_term(seen, self.memory, servers)
                if is_raft(seen.replica):
                    self.memory.membership.check(seen.replica, now, str(seen))
                leaders_commit_their_own_term(seen, self.memory)
                committed_never_changes(seen, self.memory)
                self.memory.log_times.check(seen.replica, now, str(seen))
            group = self._group(servers, tablet)
            logs_match(group)
            if master is not None:
                catalog = self.deployment.newest_catalog or master.catalog
                if tablet not in master.appointer.planner.doubts:  # until then its catalog knows nothing
                    pacifica_follows_the_catalog(group, catalog, self.memory.committed)
            for side in by_side(group).values():
                answers_match([(seen, seen.replica) for seen in side])
        for group in leaders.values():
            for side in by_side(group).values():
                one_reader_at_a_time(side)
            detector = None if master is None else master.appointer.detector
            newest = None if master is None else self.deployment.newest_catalog or master.catalog
            pacifica_readers_are_current(group, detector, newest, self.memory.committed)
        tombstones_remember(self.deployment, servers, self.memory)
        self.frozen_masters.check()
        self.memory.newcomers.check(servers)
        sessions_keep_their_log(servers)
        others_are_flushed(self.deployment.cluster, servers, self.memory.unflushed)
        quiescent_followers_have_leaders(self.deployment.cluster, servers, self.memory.leaderless)
        quiescent_leaders_have_a_majority(self.deployment.cluster, servers, self.memory.leaderless)
        leaders_learn_who_woke(servers)
        lost_disks_are_reported(self.deployment, servers)
        if master is not None:
            for server in servers:
                if server.instance.start not in self.memory.old_copies:
                    leases_are_recorded(server, self.deployment.newest_catalog or master.catalog)
            if self._catalog_has_changed(master):
                require_sound(master.catalog)
                self.memory.deletions.remember_what_ended(self.deployment.newest_catalog or master.catalog)
            self.memory.deletions.nothing_is_deleted_unasked(self.deployment)

    def awake(self) -> str:
        """See `first_awake`."""
        return first_awake(self._servers())

    def _replicas(self, servers: list[TabletServer]) -> tuple[Groups, Groups]:
        """By tablet: the running replicas that have changed, and the leaders that are not paused."""
        changed: Groups = {}
        leaders: Groups = {}
        for server in servers:
            paused = self.deployment.cluster.paused(server.world.address)
            for tablet, replica in server.replicas.items():
                if replica.state != RUNNING:
                    continue
                seen = self._known.get(replica)
                if seen is None:
                    seen = self._known[replica] = Seen(server, replica)
                facts = facts_of(seen)
                if facts != seen.facts:
                    seen.record_changed = not seen.facts or facts[-1] != seen.facts[-1]
                    seen.facts = facts
                    changed.setdefault(tablet, []).append(seen)
                if replica.core.role == LEADER and not paused:
                    leaders.setdefault(tablet, []).append(seen)
        return changed, leaders

    def _group(self, servers: list[TabletServer], tablet: str) -> list[Seen]:
        """All running replicas of the tablet."""
        there = [server.replicas.get(tablet) for server in servers]
        return [self._known[replica] for replica in there if replica and replica.state == RUNNING]

    def _catalog_has_changed(self, master: ActiveMaster) -> bool:
        """Records are replaced and never changed in place, so maps with the same records are the same catalog."""
        c = master.catalog
        maps: tuple[dict[str, Any], ...] = (
            c.tables,
            c.names,
            c.tablets,
            c.kept,
            c.namespace.nodes,
            c.namespace.sessions,
        )
        if (master, c.replicas, *maps) == self.memory.catalog:
            return False
        self.memory.catalog = (master, c.replicas, *(each.copy() for each in maps))
        return True

    def _servers(self) -> Iterator[TabletServer]:
        cluster = self.deployment.cluster
        for address in self.deployment.servers:
            server = cluster.role(address) if cluster.alive(address) else None
            if isinstance(server, TabletServer) and server.running:
                yield server

    def _master(self) -> ActiveMaster | None:
        """The single master, or the one of several that serves: it has the latest catalog."""
        only = self.deployment.masters if len(self.deployment.masters) == 1 else self.deployment.serving()
        role = self.deployment.active_master(only[0]) if only else None
        return role if role is not None and role._running else None


# -- now -----------------------------------------------------------------------------------------------------


def indexes_are_in_order(seen: Seen) -> None:
    core, store = seen.replica.core, seen.replica.store
    order = store.flushed.index, store.applied.index, core.commit_index, core.last_index
    assert list(order) == sorted(order), f"{seen}: flushed, applied, committed, last are {order}"
    assert core.durable_index <= core.last_index, (
        f"{seen}: {core.durable_index} entries durable of {order[3]}"
    )


def durable_is_on_disk(seen: Seen) -> None:
    log, index = seen.replica.log, seen.replica.core.durable_index
    if index < log.first_index or index <= log.private_last:
        return
    seq = log.slot(index).seq
    try:
        found = seen.server.shared.environment.items(ENTRIES, seq.to_bytes(SEQ_BYTES, "big"), limit=1)
    except StorageError:
        return  # the disk is lost: the replica serves nothing from it
    there = bool(found) and int.from_bytes(found[0][0][:SEQ_BYTES], "big") == seq
    assert there and seq < seen.server.rounds.synced_seq, (
        f"{seen} calls entry {index} durable, which is not on its disk"
    )


def entries_can_be_read(seen: Seen) -> None:
    log = seen.replica.log
    first = max(log.first_index, log.private_last + 1)
    if first <= log.last_index and 0 < log.slot(first).seq < seen.server.shared.first_seq:
        raise AssertionError(f"{seen} needs entry {first}, which the shared log has dropped")


def logs_match(group: list[Seen]) -> None:
    for number, one in enumerate(group):
        for other in group[:number]:
            a, b = one.replica.log, other.replica.log
            for index in range(min(a.last_index, b.last_index), max(a.dropped.index, b.dropped.index), -1):
                mine, theirs = a.position(index), b.position(index)
                if mine.term == theirs.term:
                    assert mine.chain == theirs.chain, f"{one} and {other} differ before {index}"
                    break


def one_reader_at_a_time(leaders: list[Seen]) -> None:
    if len(leaders) < 2:
        return
    readers = []
    for seen in leaders:
        try:
            seen.replica.core.read_index(seen.server.world.clock.monotonic())
        except (NotLeader, Unavailable):
            continue
        readers.append(str(seen))
    assert len(readers) <= 1, f"two serve reads at once: {readers}"


def one_master_serves(deployment: Deployment) -> None:
    serving = deployment.serving()
    assert len(serving) <= 1, f"two masters serve at once: {serving}"


# -- since ---------------------------------------------------------------------------------------------------


def sessions_keep_their_log(servers: list[TabletServer]) -> None:
    for server in servers:
        anchors_hold(server, server.world.address)


def lost_disks_are_reported(deployment: Deployment, servers: list[TabletServer]) -> None:
    for server in servers:
        state = deployment.cluster.state(server.world.address)
        if not state.lost_data or state.failed is not None:
            continue
        for held in server.lifecycle.all().values():
            try:
                held.report()
            except StorageError as error:
                raise AssertionError(f"{server.world.address} cannot report its replicas: {error}") from error


def one_leader_per_term(seen: Seen, memory: Memory, servers: list[TabletServer]) -> None:
    core = seen.replica.core
    if core.role != "leader":
        return
    known = memory.leaders.get((seen.tablet, core.term))
    if known is None:
        memory.leaders[seen.tablet, core.term] = seen.uuid
        leaders_have_what_is_committed(seen, memory)
        if is_raft(seen.replica):
            elections_have_a_majority(seen.replica, servers, str(seen))
    else:
        assert known == seen.uuid, f"term {core.term} of {seen.tablet} has two leaders: {known}, {seen.uuid}"


def leaders_commit_their_own_term(seen: Seen, memory: Memory) -> None:
    core, log = seen.replica.core, seen.replica.log
    if core.role != "leader" or not is_raft(seen.replica):
        return
    before = memory.led_from.setdefault((seen.tablet, core.term), core.commit_index)
    if core.commit_index > max(before, log.dropped.index):
        term = log.position(core.commit_index).term
        assert term == core.term, f"{seen} leads term {core.term} and committed up to an entry of term {term}"


def leaders_have_what_is_committed(seen: Seen, memory: Memory) -> None:
    log, term = seen.replica.log, seen.replica.core.term
    for index, entry in memory.committed.of(seen.tablet, newest_mark(seen.replica)).items():
        if index <= log.dropped.index or entry.seen_in >= term:
            continue
        assert index <= log.last_index, f"{seen} leads term {term} without the committed entry {index}"
        assert log.position(index).chain == entry.chain, (
            f"{seen} leads term {term} with another entry {index}"
        )


def committed_never_changes(seen: Seen, memory: Memory) -> None:
    replica, log = seen.replica, seen.replica.log
    before = memory.commit_indexes.get(id(replica), 0)
    mark = replica.core.committed_configuration.unsafe
    if memory.committed.begins(seen.tablet, mark):
        survivors_keep_their_logs(seen, memory)
        shared = max(before, log.dropped.index)
        memory.committed.begin(seen.tablet, mark, shared)
        memory.applied.begin(seen.tablet, mark, shared)
    known = memory.committed.of(seen.tablet, mark)
    last = min(replica.core.commit_index, log.last_index)
    assert last >= before, f"{seen} had committed {before} entries and has {last}"
    if before > log.dropped.index:  # the entry's chain covers all entries before it
        position = log.position(before)
        entry = known[before]
        assert (position.term, position.chain) == (entry.term, entry.chain), (
            f"{seen} has another entry {before} than before"
        )
    first, term = max(before, log.dropped.index) + 1, replica.core.term
    for index in range(first, last + 1):
        slot = log.slot(index)
        there = known.setdefault(index, Entry(slot.term, slot.chain, term))
        elsewhere, here = (there.term, there.chain), (slot.term, slot.chain)
        assert elsewhere == here, f"{seen}: entry {index} was committed as {elsewhere}, here it is {here}"
    memory.applied.take(replica, first, last)
    memory.commit_indexes[id(replica)] = last


def survivors_keep_their_logs(seen: Seen, memory: Memory) -> None:
    """The log at the time of the request that forced the survivor to lead."""
    log = seen.replica.log
    had = memory.committed.had_when_forced(seen.replica)
    if had is not None and had.index > log.dropped.index:
        assert had.index <= log.last_index and log.position(had.index).chain == had.chain, (
            f"{seen} was forced to lead, and has lost some of its {had.index} entries"
        )


def terms_and_votes_only_grow(seen: Seen, memory: Memory) -> None:
    if seen.server.instance.start not in memory.old_copies:
        memory.remembered.votes(seen.server, seen.tablet, str(seen))


def votes_are_given_once(deployment: Deployment, servers: list[TabletServer]) -> None:
    for server in servers:
        deployment.votes.forget(server)
    assert not deployment.votes.twice, deployment.votes.twice


def promises_are_remembered(seen: Seen, memory: Memory) -> None:
    if seen.server.instance.start not in memory.old_copies:
        memory.remembered.check(seen.server, seen.replica, str(seen))


def tombstones_remember(deployment: Deployment, servers: list[TabletServer], memory: Memory) -> None:
    for server in servers:
        if server.instance.start not in memory.old_copies:
            address = server.world.address
            directory = deployment.cluster.state(address)
            damaged = partial(deployment.cluster.tolerates, address, A_DAMAGED_RECORD, directory)
            memory.remembered.check_tombstones(server, damaged)


def old_copies_are_not_believed(
    deployment: Deployment, servers: list[TabletServer], master: ActiveMaster | None, memory: Memory
) -> None:
    for server in servers:
        if deployment.cluster.state(server.world.address).is_copy:
            memory.old_copies[server.instance.start] = server.world.address
    if not memory.old_copies:
        return
    believed = {server.world.address: server.identity.others for server in servers}
    if master is not None:
        believed[master.world.address] = master.incarnations
    for address, incarnations in believed.items():
        for known in incarnations.all():
            old = memory.old_copies.get(known.start)
            assert old is None, f"{address} takes {old}, which runs on an old copy, for server {known.uuid}"
