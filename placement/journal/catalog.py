"""Where a deployment keeps its catalog: with its only master, or in the masters' journal; and how it gets there.

    local      one master, its own log
    journal    any number of masters, an odd number of journal nodes (placement/journal/journals.py)

Where nothing else is said, a new deployment on three machines or more gets two masters and three journal nodes. On fewer
machines, such as one that runs several Ray nodes, a second master would die with the first, and Ray starts a single one
again as soon.

A local catalog may be moved into a journal, once (actors/master/leadership/mover.py), and never back. What is under way is
remembered before it begins and when it is done, so that the next `ebla up` goes on with it, whatever ended the last one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

import msgspec

from ebla.actors.errors import Unavailable
from ebla.actors.master.leadership.mover import Moved
from ebla.actors.messages import Empty
from ebla.actors.ray_world import RayNetwork
from ebla.placement.config import DeploymentConfig, validate
from ebla.placement.deploy import groups, memory
from ebla.placement.deploy.fleet import Fleet
from ebla.placement.deploy.roles import JOURNAL_NODE_ROLE, PlanRoles, journal_of, mover
from ebla.placement.deploy.slots import Host, Seats, Survey, machine_of, seat
from ebla.placement.journal import journals
from ebla.placement.state import Deployment, JournalMemory
from ebla.storage.errors import InvalidArgument

MASTERS, JOURNALS, MACHINES_MIN = 2, 3, 3
MOVE_S = 300.0  # reading a large catalog, and one large edit to each journal node


# -- decisions -----------------------------------------------------------------------------------------------


def settled(config: DeploymentConfig, before: Deployment, hosts: Sequence[Host]) -> DeploymentConfig:
    """With numbers of masters and journal nodes: those given, else those that the deployment has, else by the hosts. Raises
    if the two do not go together."""
    masters, journals = config.masters, config.journals
    if before.revision > 0:
        there = (len(before.masters), len(before.journal.slots) if before.journal else 0)
    elif (
        masters is None
        and journals is None
        and len({machine_of(host.address) for host in hosts}) >= MACHINES_MIN
    ):
        there = (MASTERS, JOURNALS)
    else:
        there = (min(MASTERS, len(hosts)) if journals else 1, 0)
    found = msgspec.structs.replace(
        config,
        masters=there[0] if masters is None else masters,
        journals=there[1] if journals is None else journals,
    )
    validate(found)
    return found


def counts(config: DeploymentConfig) -> tuple[int, int]:
    """Masters and journal nodes."""
    assert config.masters is not None and config.journals is not None, "it was settled"
    return config.masters, config.journals


def require_room(config: DeploymentConfig, before: Deployment | None, hosts: Sequence[Host]) -> None:
    """What these hosts cannot carry is refused before anything is started on them."""
    known = before or Deployment(uuid="", revision=0, config=config)
    chosen = [host.slot for host in hosts if not config.slots or host.slot in config.slots]
    journals = known.journal.slots if known.journal else ()
    seat(chosen, *counts(settled(config, known, hosts)), known.masters, journals)


def require_possible(before: Deployment, config: DeploymentConfig, running: Sequence[str]) -> None:
    """What is there already allows no other number of journal nodes, and no fewer masters. `running`: actors."""
    if before.revision == 0:
        return
    journal, masters = before.journal, len(before.masters)
    wanted, nodes = counts(config)
    made = journal is not None and journal.formatted
    if journal is not None and made and nodes != len(journal.slots):
        raise InvalidArgument(
            f"journals is {nodes}, but the catalog is in a journal of {len(journal.slots)} nodes, and they cannot "
            f"be exchanged; set journals to {len(journal.slots)}"
        )
    if made and wanted < masters:
        raise InvalidArgument(
            f"masters is {wanted}, but there are {masters}, and the one that is left out may hold the only "
            f"checkpoint of what the journal let go of; set masters to {masters}"
        )
    moves = journal is None and nodes > 0
    if running and (moves or wanted > masters):
        what = f"journals is {nodes}" if moves else f"masters is {wanted}"
        raise InvalidArgument(
            f"{what} now, but {len(running)} roles run that know nothing of it; `ebla down`, "
            "then `ebla up` again"
        )


def kept(before: Deployment, config: DeploymentConfig) -> JournalMemory | None:
    """One that was never made is planned anew if another number of nodes is wanted now."""
    journal = before.journal
    if journal is None or journal.formatted or len(journal.slots) == config.journals:
        return journal
    return None


def planned(before: Deployment, slots: tuple[str, ...]) -> JournalMemory:
    """A new one. Masters that were seated without a journal have a catalog that goes into it first."""
    local = bool(before.masters) if before.journal is None else before.journal.moving
    return JournalMemory(id=secrets.token_hex(16), slots=slots, moving=local)


def seats(state: Deployment) -> Seats:
    """Also of hosts that are away now."""
    chosen = state.config.slots
    served = tuple(sorted(slot for slot in groups.bundles(state.groups) if not chosen or slot in chosen))
    return Seats(state.masters, served, state.journal.slots if state.journal else ())


# -- steps ---------------------------------------------------------------------------------------------------


def kept_safely(
    fleet: Fleet, plan: PlanRoles, state: Deployment, available: Survey, deadline_s: float
) -> Deployment:
    """The journal exists on all of its nodes and has the catalog, and that is remembered, before the first master starts."""
    journal = state.journal
    if journal is not None and not journal.formatted:
        _launch_nodes(fleet, plan, state, deadline_s)
        options = journal_of(state.config, seats(state), journal.id)
        made = journals.make(state.config.namespace, options)
        journal = msgspec.structs.replace(journal, id=made, formatted=True)
        state = _remembered(state, journal, available)
    if journal is not None and journal.moving:
        _launch_nodes(fleet, plan, state, deadline_s)
        _move(fleet, state, available, deadline_s)
        state = _remembered(state, msgspec.structs.replace(journal, moving=False), available)
    return state


def _launch_nodes(fleet: Fleet, plan: PlanRoles, state: Deployment, deadline_s: float) -> None:
    assert state.journal is not None
    specs = plan(state.config, seats(state), state.journal.id)
    fleet.bring([spec for spec in specs if spec.role == JOURNAL_NODE_ROLE], deadline_s)


def _move(fleet: Fleet, state: Deployment, available: Survey, deadline_s: float) -> None:
    assert state.journal is not None
    options = journal_of(state.config, seats(state), state.journal.id)
    spec = mover(state.masters[0], options)
    if available.host(spec.slot) is None:
        raise Unavailable(
            f"the catalog that goes into the journal is on {spec.slot}, which has no alive node; start it, then run `ebla up` "
            "again"
        )
    try:
        fleet.bring([spec], deadline_s)
        network = RayNetwork(state.config.namespace)
        asyncio.run(network.call(spec.address, "move", Empty(), Moved, MOVE_S))
    finally:
        fleet.dismiss(spec.address)


def _remembered(state: Deployment, journal: JournalMemory, available: Survey) -> Deployment:
    after = state.revised(journal=journal)
    memory.keep(after, state, available.hosts)
    return after
