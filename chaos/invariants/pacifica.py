"""Invariants of PacificA tablets, against the catalog of the active master at the same instant.

primaries_lead_by_the_catalog   a replica leads only by a configuration that the catalog has, or had
voters_hold_what_is_committed   every voter of the catalog's configuration has every committed entry in its synced log
"""

from __future__ import annotations

from collections.abc import Mapping

from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import LEADER
from ebla.chaos.invariants.seen import Seen
from ebla.chaos.simulation.observers.sides import Committed, Entry


def pacifica_follows_the_catalog(group: list[Seen], catalog: Catalog, committed: Committed) -> None:
    """`group`: the running replicas of one tablet."""
    record = catalog.tablets.get(group[0].tablet) if group else None
    stored = record.configuration if record else None
    if stored is not None and stored.primary is not None:
        primaries_lead_by_the_catalog(group, stored)
        voters_hold_what_is_committed(group, stored, committed.of(group[0].tablet, stored.unsafe))


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
        least = core.configuration.min_members
        assert len(core.configuration.voters()) >= least, f"{seen} leads fewer than {least} voters"


def voters_hold_what_is_committed(
    group: list[Seen], stored: Configuration, committed: Mapping[int, Entry]
) -> None:
    if not committed:
        return
    last = max(committed)
    for seen in group:
        peer, log = stored.peer(seen.uuid), seen.replica.log
        if peer is None or peer not in stored.voters() or last <= log.dropped.index:
            continue
        durable = seen.replica.core.durable_index
        assert durable >= last, f"{seen} votes, and has {durable} of {last} committed entries on its disk"
        assert log.position(last).chain == committed[last].chain, f"{seen} votes with another entry {last}"
