"""The masters' journal as `ebla up` finds it: made exactly once, and never taken for another.

Its id is remembered before any node is told (placement/state.py), so whatever a crash leaves half-made is made to the
end by the next `up`. Once it was made, or used, it is not made again: a node that comes back empty has forgotten what it
promised. Then the others go on without it, and `up` says so; where a majority is empty or foreign, it refuses.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, cast

from ebla.actors.errors import Unavailable
from ebla.actors.journal.errors import ForeignJournal, NotFormatted
from ebla.actors.journal.messages import FormatState, JournalName
from ebla.actors.journal.options import JournalOptions, majority
from ebla.actors.journal.session import format_journal
from ebla.actors.messages import Empty, MasterStatus
from ebla.actors.ray_shell import Tasks
from ebla.actors.ray_world import RayClock, RayNetwork
from ebla.actors.world import World
from ebla.storage.environment import Disk
from ebla.storage.errors import EblaError, InvalidArgument

T = TypeVar("T")

ASK_S = 5.0
POLL_S = 0.05

Said = FormatState | EblaError  # what a journal node says of the journal, or why it says nothing


# -- decisions -----------------------------------------------------------------------------------------------


def to_make(journal: JournalOptions, said: Mapping[str, Said]) -> tuple[str, bool]:
    """The id of the journal, and whether it has to be made. One that all of the nodes have already is the one: what was
    remembered of the deployment was lost, the directories were not."""
    for node, state in said.items():
        if isinstance(state, EblaError):
            raise Unavailable(
                f"the journal needs each of its nodes to be made, and {node} gives no answer ({state}); start its host, "
                "then run `ebla up` again"
            )
    states = {node: state for node, state in said.items() if isinstance(state, FormatState)}
    ids = {state.id for state in states.values()}
    if len(ids) == 1 and None not in ids:
        _require_nodes(journal, states)
        return str(ids.pop()), False
    for node, state in states.items():
        if state.id not in (None, journal.journal.id):
            raise _foreign(journal, node, state)
    used = [node for node, state in states.items() if state.used]
    if used:
        verify(journal, said)
    return journal.journal.id, not used


def verify(journal: JournalOptions, said: Mapping[str, Said]) -> list[str]:
    """What to warn of. Raises if so many nodes lack the journal that nothing can be written to it."""
    wrong = {node: error for node, state in said.items() if (error := _wrong(journal, node, state))}
    if len(said) - len(wrong) < majority(len(said)):
        raise next(iter(wrong.values()))
    return [f"{error.message}; the other journal nodes go on without it" for error in wrong.values()]


def _wrong(journal: JournalOptions, node: str, state: Said) -> EblaError | None:
    if isinstance(state, EblaError):
        return None  # its role says why
    if state.id is None:
        return NotFormatted(
            f"{node} is empty, but the catalog's journal was made there: its directory was lost or is not mounted; mount it, "
            f"or let the node forget it with `ebla journal rejoin {node}`",
            journal=journal.journal.name,
        )
    return None if state.id == journal.journal.id else _foreign(journal, node, state)


def _foreign(journal: JournalOptions, node: str, state: FormatState) -> ForeignJournal:
    return ForeignJournal(
        f"{node} holds the journal of another deployment (id {state.id}, not {journal.journal.id}); move its directory "
        "aside, or give this deployment a data_dir of its own",
        journal=journal.journal.name,
        wanted=journal.journal.id,
        found=state.id,
    )


def _require_nodes(journal: JournalOptions, states: Mapping[str, FormatState]) -> None:
    for node, state in states.items():
        if state.nodes != journal.nodes:
            raise InvalidArgument(
                f"journals is {len(journal.nodes)}, but {node} holds a journal of {len(state.nodes)} nodes; set journals "
                f"to {len(state.nodes)}"
            )


# -- Ray -----------------------------------------------------------------------------------------------------


def make(namespace: str, journal: JournalOptions) -> str:
    """Durable on every node when it returns; the journal's id."""

    async def work(world: World) -> str:
        found, needed = to_make(journal, await _ask(world, journal))
        if needed:
            await format_journal(world, journal)
        return found

    return _operate(namespace, work)


def look(namespace: str, journal: JournalOptions, masters: Sequence[str], wait_s: float) -> list[str]:
    """As `verify`, of what the nodes say now; and whether one of the masters is active, or becomes so while it waits."""

    async def work(world: World) -> list[str]:
        warnings = verify(journal, await _ask(world, journal))
        until = world.clock.monotonic() + wait_s
        while masters and not await _is_one_active(world, masters):
            if world.clock.monotonic() >= until:
                return [*warnings, "no master is active yet; `ebla check` tells why"]
            await world.clock.sleep(POLL_S)
        return warnings

    return _operate(namespace, work)


async def _is_one_active(world: World, masters: Sequence[str]) -> bool:
    async def one(master: str) -> bool:
        try:
            status = await world.network.call(master, "status", Empty(), MasterStatus, ASK_S)
        except EblaError:
            return False
        return status.role == "active"

    return any(await asyncio.gather(*map(one, masters)))


async def _ask(world: World, journal: JournalOptions) -> dict[str, Said]:
    question = JournalName(journal.journal.name)

    async def one(node: str) -> Said:
        try:
            return await world.network.call(node, "format_state", question, FormatState, ASK_S)
        except EblaError as error:
            return error

    return dict(zip(journal.nodes, await asyncio.gather(*map(one, journal.nodes)), strict=True))


def _operate(namespace: str, work: Callable[[World], Coroutine[Any, Any, T]]) -> T:
    """In a world without a disk: it only asks others."""

    async def body() -> T:
        failed: list[BaseException] = []
        tasks = Tasks(lambda name, error: failed.append(error))
        world = World(
            address="operator",
            clock=RayClock(),
            network=RayNetwork(namespace),
            disk=cast(Disk, None),
            random=random.Random(os.urandom(32)),
            spawn=tasks.spawn,
            fail=failed.append,
        )
        try:
            return await work(world)
        finally:
            tasks.cancel()

    return asyncio.run(body())
