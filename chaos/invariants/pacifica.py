"""Invariants of PacificA tablets, against the catalog and the detector of the active master at the same instant.

primaries_lead_by_the_catalog   a replica leads only by a configuration that the catalog has, or had
voters_hold_what_is_committed   every voter of the catalog's configuration has every committed entry in its synced log, except on
                                an old copy of a directory, until it is recognised
readers_see_what_is_committed   a replica that serves reads has every committed entry
ended_servers_do_not_serve      no replica serves reads while its server counts as dead
given_up_is_over                no replica serves reads without knowing the catalog's forced configuration
leases_are_recorded             a server has a lease only if the catalog has its incarnation
"""

from __future__ import annotations

from collections.abc import Mapping

from ebla.actors.detector.detector import Detector
from ebla.actors.errors import NotLeader, Unavailable
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import LEADER
from ebla.actors.tablet.pacifica.core import PacificaCore
from ebla.actors.tablet.server import TabletServer
from ebla.chaos.invariants.seen import Seen
from ebla.chaos.simulation.observers.sides import Committed, Entry


def pacifica_follows_the_catalog(group: list[Seen], catalog: Catalog, committed: Committed) -> None:
    """`group`: the running replicas of one tablet."""
    record = catalog.tablets.get(group[0].tablet) if group else None
    stored = record.configuration if record else None
    if stored is not None and stored.primary is not None:
        primaries_lead_by_the_catalog(group, stored)
        voters_hold_what_is_committed(group, stored, committed.of(group[0].tablet, stored.unsafe))


def pacifica_readers_are_current(
    leaders: list[Seen], detector: Detector | None, catalog: Catalog | None, committed: Committed
) -> None:
    """`leaders`: of one tablet, on servers that are not paused; `detector`, `catalog`: of the active master."""
    record = catalog.tablets.get(leaders[0].tablet) if catalog is not None and leaders else None
    stored = record.appointed if record is not None else None
    for seen in leaders:
        core = seen.replica.core
        if not isinstance(core, PacificaCore):
            return
        try:
            sees = core.read_index(seen.server.world.clock.monotonic())
        except (NotLeader, Unavailable):
            continue
        last = max(committed.of(seen.tablet, core.forced_epoch), default=0)
        assert sees >= last, f"{seen} serves reads up to entry {sees}, and {last} are committed"
        ended = detector is not None and detector.has_ended(seen.uuid)
        assert not ended, f"{seen} serves reads, and its server counts as dead"
        given_up = stored is not None and core.forced_epoch < stored.unsafe
        assert not given_up, f"{seen} serves reads, and an operator has given it up: {stored}"


def leases_are_recorded(server: TabletServer, catalog: Catalog) -> None:
    if not server.leasing.holds():
        return
    recorded = catalog.incarnations.get(server.instance.uuid)
    assert recorded is not None and recorded.start == server.instance.start, (
        f"{server.world.address} has a lease as {server.instance}, and the catalog has {recorded}"
    )


def primaries_lead_by_the_catalog(group: list[Seen], stored: Configuration) -> None:
    for seen in group:
        core = seen.replica.core
        if core.role != LEADER:
            continue
        assert core.term <= stored.index, (
            f"{seen} leads ballot {core.term}, and the catalog has {stored.index}"
        )
        if core.term == stored.index:
            assert stored == core.configuration, (
                f"{seen} leads by {core.configuration}, the catalog has {stored}"
            )
            assert stored.primary == seen.uuid, f"{seen} leads for {stored.primary}"
        # An operator may leave fewer voters, or demand more of them. Such a configuration commits nothing, not even itself.
        known = core.configuration
        enough = len(known.voters()) >= known.min_members
        assert enough or core.committed_configuration.index < known.index, (
            f"{seen} commits with fewer than {known.min_members} voters"
        )


def voters_hold_what_is_committed(
    group: list[Seen], stored: Configuration, committed: Mapping[int, Entry]
) -> None:
    if not committed:
        return
    last = max(committed)
    for seen in group:
        peer, log = stored.peer(seen.uuid), seen.replica.log
        if (
            peer is None
            or peer not in stored.voters()
            or last <= log.dropped.index
            or seen.disk.state.is_copy
        ):
            continue
        durable = seen.replica.core.durable_index
        assert durable >= last, f"{seen} votes, and has {durable} of {last} committed entries on its disk"
        assert log.position(last).chain == committed[last].chain, f"{seen} votes with another entry {last}"
