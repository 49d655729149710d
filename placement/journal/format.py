"""Makes the masters' journal, and judges the states of its nodes: the part of `ebla up` that does
not know Ray.

The rules are those of placement/journal/journals.py. The simulation makes its journals by the same rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ebla.actors.errors import Unavailable
from ebla.actors.journal.errors import ForeignJournal, NotFormatted
from ebla.actors.journal.messages import FormatState, JournalName
from ebla.actors.journal.options import JournalOptions, majority
from ebla.actors.journal.writer.session import format_journal
from ebla.actors.world import World
from ebla.storage.errors import EblaError, InvalidArgument

ASK_S = 5.0

Said = FormatState | EblaError  # a journal node's state of the journal, or why there is no answer


# -- decisions -----------------------------------------------------------------------------------------------


def to_make(journal: JournalOptions, said: Mapping[str, Said]) -> tuple[str, bool]:
    """The id of the journal, and whether it has to be made. If all nodes have one journal already,
    that journal is used, even with another id: the deployment's saved state was lost, and the
    directories were not."""
    for node, state in said.items():
        if isinstance(state, EblaError):
            raise Unavailable(
                f"the journal is made only if every node answers, and {node} gives no answer ({state}); start its host, "
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
    """The warnings about nodes that lack the journal. Raises if too few nodes have it to write to it."""
    wrong = {node: error for node, state in said.items() if (error := _wrong(journal, node, state))}
    if len(said) - len(wrong) < majority(len(said)):
        raise next(iter(wrong.values()))
    return [f"{error.message}; the other journal nodes continue without it" for error in wrong.values()]


def _wrong(journal: JournalOptions, node: str, state: Said) -> EblaError | None:
    if isinstance(state, EblaError):
        return None  # the role itself reports why
    if state.id is None:
        if len(journal.nodes) == 1:
            return NotFormatted(
                f"{node} is empty, but the catalog's only journal node was made there: its directory was lost or is not mounted; bring "
                "it back, or set up a new deployment in another data_dir",
                journal=journal.journal.name,
            )
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


# -- asking --------------------------------------------------------------------------------------------------


async def made(world: World, journal: JournalOptions) -> str:
    """Make the journal if needed, and return its id. Durable on every node when it returns. Raises
    if a node does not answer."""
    found, needed = to_make(journal, await asked(world, journal))
    if needed:
        await format_journal(world, journal)
    return found


async def asked(world: World, journal: JournalOptions) -> dict[str, Said]:
    question = JournalName(journal.journal.name)

    async def one(node: str) -> Said:
        try:
            return await world.network.call(node, "format_state", question, FormatState, ASK_S)
        except EblaError as error:
            return error

    return dict(zip(journal.nodes, await asyncio.gather(*map(one, journal.nodes)), strict=True))
