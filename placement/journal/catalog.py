"""The numbers of masters and journal nodes of a deployment, and how the journal of its catalog is
made and grows.

    one node         in the process of the single master, and in its directory
    three or more    an odd number, each a process of its own; any number of masters. If there was one node at
                     first, that node stays in the process of master/0

By default, a new deployment on three machines or more gets two masters and three journal nodes. On
fewer machines, such as one that runs several Ray nodes, a second master would die with the first,
and Ray restarts a single master as soon.

A journal of one node may grow, once (actors/master/leadership/growth.py), and never shrinks. Each
step is saved before it begins and when it is done, so that the next `ebla up` continues it after
any interruption.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence

import msgspec

from ebla.actors import deadlines
from ebla.actors.errors import NetworkError, NotActive, NotRunning, Unavailable
from ebla.actors.master.messages import GrowJournalReply, GrowJournalRequest
from ebla.actors.ray_world import RayNetwork
from ebla.placement.config import DeploymentConfig, changed_times, validate
from ebla.placement.deploy import groups, memory
from ebla.placement.deploy.fleet import Fleet, end_actor
from ebla.placement.deploy.roles import PlanRoles, RoleSpec, journal_of
from ebla.placement.deploy.slots import Host, Seats, Survey, machine_of, seat
from ebla.placement.journal import journals
from ebla.placement.state import Deployment, JournalMemory
from ebla.storage.errors import EblaError, InvalidArgument

MASTERS, JOURNALS, MACHINES_MIN = 2, 3, 3
MASTER, JOURNAL, FIRST_MASTER = "master/", "journal/", "master/0"
WITH_DATA = ("tablet-server/", "ledger-store/")  # roles whose address ends with their slot
GROW_S_MIN, PAUSE_S = 5.0, 0.2


# -- decisions -----------------------------------------------------------------------------------------------


def settled(config: DeploymentConfig, before: Deployment, hosts: Sequence[Host]) -> DeploymentConfig:
    """Complete `config` with the numbers of masters and journal nodes: the given ones, else those of the
    deployment, else by the hosts. Raises InvalidArgument if the two numbers do not fit together."""
    masters, journals = config.masters, config.journals
    if before.revision > 0:
        there = (len(before.masters), len(before.journal.wanted) if before.journal else 1)
    elif (
        masters is None
        and journals is None
        and len({machine_of(host.address) for host in hosts}) >= MACHINES_MIN
    ):
        there = (MASTERS, JOURNALS)
    else:
        there = (min(MASTERS, len(hosts)) if (journals or 1) > 1 else 1, 1)
    found = msgspec.structs.replace(
        config,
        masters=there[0] if masters is None else masters,
        journals=there[1] if journals is None else journals,
    )
    validate(found)
    return found


def counts(config: DeploymentConfig) -> tuple[int, int]:
    """The numbers of masters and journal nodes."""
    assert config.masters is not None and config.journals is not None, "it was settled"
    return config.masters, config.journals


def require_room(config: DeploymentConfig, before: Deployment | None, hosts: Sequence[Host]) -> None:
    """Refuse a configuration that these hosts have no room for, before anything is started on them."""
    known = before or Deployment(uuid="", revision=0, config=config)
    chosen = [host.slot for host in hosts if not config.slots or host.slot in config.slots]
    journals = known.journal.wanted if known.journal else ()
    seat(chosen, *counts(settled(config, known, hosts)), known.masters, journals)


def require_possible(before: Deployment, config: DeploymentConfig, running: Sequence[str]) -> None:
    """Refuse numbers that the existing deployment does not allow: another number of journal nodes,
    unless there is one, and fewer masters. While actors are `running`, also more masters, other times on which leases rest, and
    fewer hosts than those with servers."""
    if before.revision == 0:
        return
    if config.slots != before.config.slots:
        _require_their_hosts(config, running)
    journal, masters = before.journal, len(before.masters)
    wanted, nodes = counts(config)
    made = journal is not None and journal.formatted
    if journal is not None and made and nodes != len(journal.wanted) and not (journal.may_grow and nodes > 1):
        present = f"is in a journal of {len(journal.slots)} nodes; only one node becomes more"
        if journal.joining:
            present = f"is in a journal that grows to {len(journal.wanted)} nodes, and a growth is not undone"
        raise InvalidArgument(
            f"journals is {nodes}, but the catalog {present}; set journals to {len(journal.wanted)}"
        )
    if made and wanted < masters:
        raise InvalidArgument(
            f"masters is {wanted}, but there are {masters}, and the one that is left out may hold the only "
            f"checkpoint of edits that the journal has dropped; set masters to {masters}"
        )
    if running and wanted > masters:
        raise InvalidArgument(
            f"masters is {wanted} now, but {len(running)} roles run with the former number; `ebla down`, "
            "then `ebla up` again"
        )
    changed = changed_times(before.config, config)
    if running and changed:
        raise InvalidArgument(
            f"{', '.join(changed)} would change while {len(running)} roles run with the former settings, and leases rest on equal ones; "
            "`ebla down`, then `ebla up` again"
        )


def _require_their_hosts(config: DeploymentConfig, running: Sequence[str]) -> None:
    """Servers that are left out would run on, and not be started again after their end."""
    found = {address.partition("/")[2] for address in running if address.startswith(WITH_DATA)}
    if config.slots and (dropped := sorted(found - set(config.slots))):
        raise InvalidArgument(
            f"slots leaves out {', '.join(dropped)}, where servers with data run; first run `ebla nodes decommission "
            f"{dropped[0]} --stop`, or name {'it' if len(dropped) == 1 else 'them'} too"
        )


def kept(before: Deployment, config: DeploymentConfig) -> JournalMemory | None:
    """The journal to keep. A journal that was never made is planned again if another number of
    nodes is wanted now."""
    journal = before.journal
    if journal is None or journal.formatted or len(journal.slots) == config.journals:
        return journal
    return None


def planned(before: JournalMemory | None, slots: tuple[str, ...]) -> JournalMemory:
    """The planned journal: a new one, a growing one, or the same as before."""
    if before is None:
        return JournalMemory(id=secrets.token_hex(16), slots=slots, in_master=len(slots) == 1)
    return msgspec.structs.replace(before, joining=slots[len(before.slots) :])


def seats(state: Deployment) -> Seats:
    """The slots of all roles, including those of hosts that are away now."""
    chosen, journal = state.config.slots, _planned(state)
    served = tuple(sorted(slot for slot in groups.bundles(state.groups) if not chosen or slot in chosen))
    return Seats(state.masters, served, journal.slots, journal.in_master)


def roles(plan: PlanRoles, state: Deployment) -> list[RoleSpec]:
    """The roles of the deployment. Nodes that join the journal are planned with its new set of nodes."""
    journal = _planned(state)
    now = list(plan(state.config, seats(state), journal.id))
    known = {spec.address for spec in now}
    later = plan(state.config, seats(state.revised(journal=_as_grown(journal))), journal.id)
    return now + [spec for spec in later if spec.address not in known]


def joins(state: Deployment, address: str) -> bool:
    """Whether this is a new node of a journal that has yet to grow."""
    return bool(_planned(state).joining) and address.startswith(JOURNAL)


def waits(state: Deployment, address: str) -> bool:
    """Whether this is a further master, which starts when the journal has grown."""
    return bool(_planned(state).joining) and address.startswith(MASTER) and address != FIRST_MASTER


def _planned(state: Deployment) -> JournalMemory:
    assert state.journal is not None, "it was planned"
    return state.journal


def _as_grown(journal: JournalMemory) -> JournalMemory:
    return msgspec.structs.replace(journal, slots=journal.wanted, joining=())


# -- steps ---------------------------------------------------------------------------------------------------


def made(
    fleet: Fleet, plan: PlanRoles, state: Deployment, available: Survey, deadline_s: float
) -> Deployment:
    """Make the journal: before the other masters start, it exists on all of its nodes, and this is saved."""
    journal = _planned(state)
    if journal.formatted:
        return state
    options = journal_of(state.config, seats(state), journal.id)
    fleet.bring([spec for spec in roles(plan, state) if spec.address in options.nodes], deadline_s)
    id = journals.make(state.config.namespace, options)
    return _remembered(state, msgspec.structs.replace(journal, id=id, formatted=True), available)


def grown(
    fleet: Fleet, plan: PlanRoles, state: Deployment, available: Survey, deadline_s: float
) -> tuple[Deployment, str]:
    """Grow the journal, if new nodes join it. Return the state, and why the growth is not complete.

    The roles that do not need the growth are started before, so they also serve if it fails.
    """
    if not _planned(state).joining:
        return state, ""
    others = [
        spec for spec in roles(plan, state) if not (joins(state, spec.address) or waits(state, spec.address))
    ]
    fleet.bring(others, time.monotonic())  # starts them, and does not wait
    try:
        fleet.bring([spec for spec in others if spec.address == FIRST_MASTER], deadline_s)
        state = _placed_again(state, available)
        journal = _as_grown(_planned(state))
        nodes = journal_of(state.config, seats(state.revised(journal=journal)), journal.id).nodes
        fleet.bring([spec for spec in roles(plan, state) if spec.address in nodes], deadline_s)
        deadlines.run(_grow(state.config, nodes, deadline_s))
    except EblaError as error:
        return state, f"the growth of the journal is not complete: {error}; `ebla up` continues it"
    return _remembered(state, journal, available), ""


def _placed_again(state: Deployment, available: Survey) -> Deployment:
    """Place the joining nodes whose hosts are away on other hosts, durably.

    After the commit point of the growth they keep their slots: a node may have counted, and its directory
    would be used again later. Raises Unavailable if a node has no host before the commit point.
    """
    before, namespace = _planned(state), state.config.namespace
    away = [slot for slot in before.joining if available.host(slot) is None]
    there = seats(state)
    options = journal_of(state.config, there, before.id)
    if not away or journals.nodes_of(namespace, options) != options.nodes:
        return state
    free = [slot for slot in there.tablet_servers if available.host(slot) and slot not in before.wanted]
    free.sort(key=lambda slot: slot in state.masters)  # hosts without a master first
    if len(free) < len(away):
        raise Unavailable(
            f"a new journal node has no host: slot {away[len(free)]} has no alive node, and no other host is free; "
            "start a node with this label, or any other node"
        )
    places = dict(zip(away, free, strict=False))
    for number, slot in enumerate(before.joining, 1):
        if slot in places:
            end_actor(namespace, f"{JOURNAL}{number}")  # Ray would start it again on the old host
    joining = tuple(places.get(slot, slot) for slot in before.joining)
    return _remembered(state, msgspec.structs.replace(before, joining=joining), available)


async def _grow(config: DeploymentConfig, nodes: tuple[str, ...], deadline_s: float) -> None:
    """Repeat the request to the master, which may not be active yet, or may give up an attempt."""
    network = RayNetwork(config.namespace)
    while True:
        left_s = max(GROW_S_MIN, deadline_s - time.monotonic())
        try:
            await network.call(nodes[0], "grow_journal", GrowJournalRequest(nodes), GrowJournalReply, left_s)
        except (NetworkError, NotActive, NotRunning, Unavailable):
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(PAUSE_S)
        else:
            return


def _remembered(state: Deployment, journal: JournalMemory, available: Survey) -> Deployment:
    after = state.revised(journal=journal)
    memory.keep(after, state, available.hosts)
    return after
