"""Requests to all nodes of a journal that continue with the answers of a majority.

A wait ends as soon as its result is certain: there are enough answers, or too few nodes are left to
give them. A wait also ends when its time is over, no matter which requests are queued before its own.
JournalBroken and NodesMoved are never outvoted. A journal of one node passes on the error that its
disk is full (the node has then written nothing) or that its directory is damaged. Later answers of
the other nodes are not awaited; their requests succeed or fail on their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Generic, TypeVar

import msgspec

from ebla.actors.errors import InvalidArgument
from ebla.actors.journal.errors import JournalBroken, NodesMoved, QuorumFailed
from ebla.actors.journal.options import JournalOptions
from ebla.actors.world import World
from ebla.storage.errors import Corruption, Damaged, DiskFull, EblaError

T = TypeVar("T")
UNLIMITED: AbstractAsyncContextManager[object] = nullcontext()  # the calls have their own limits


class Tally(Generic[T]):
    """The answers so far, and the verdict that follows from them. Never waits."""

    def __init__(self, journal: str, what: str, nodes: Sequence[str], needed: int) -> None:
        assert 0 < needed <= len(nodes)
        self._journal = journal
        self._what = what
        self._nodes = nodes
        self._needed = needed
        self.answers: dict[str, T] = {}
        self.errors: dict[str, EblaError] = {}

    def answer(self, node: str, answer: T) -> None:
        self.answers[node] = answer

    def error(self, node: str, error: EblaError) -> None:
        self.errors[node] = error

    def verdict(self) -> bool | EblaError:
        """Return True: enough answers; an error: there will never be enough; False: not yet known."""
        for error in self.errors.values():
            if isinstance(error, JournalBroken | NodesMoved):
                return error
            if isinstance(error, DiskFull | Corruption | Damaged) and len(self._nodes) == 1:
                return error
        if len(self.answers) >= self._needed:
            return True
        if len(self._nodes) - len(self.errors) >= self._needed:
            return False
        return self.failed()

    def failed(self) -> QuorumFailed:
        each = [f"{node}: {self._said(node)}" for node in self._nodes]
        return QuorumFailed(
            f"could not {self._what} in journal {self._journal}: {len(self.answers)} of {len(self._nodes)} nodes did, "
            f"{self._needed} are needed ({'; '.join(each)})",
            journal=self._journal,
            what=self._what,
            nodes=each,
        )

    def in_order(self) -> dict[str, T]:
        return {node: self.answers[node] for node in self._nodes if node in self.answers}

    def _said(self, node: str) -> str:
        if node in self.answers:
            return "done"
        error = self.errors.get(node)
        return "no answer yet" if error is None else f"{type(error).__name__}: {error}"


async def majority(
    journal: str,
    what: str,
    calls: Mapping[str, asyncio.Future[T]],
    needed: int,
    limit: AbstractAsyncContextManager[object] = UNLIMITED,
) -> dict[str, T]:
    """Wait for a majority and return the answers that came in time, in the order of the nodes.

    `limit`: a timeout of the whole. Raises the error of `Tally.verdict`, such as QuorumFailed or
    JournalBroken, and any other exception of a call, which is a defect.
    """
    tally: Tally[T] = Tally(journal, what, list(calls), needed)
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(node: str, call: asyncio.Future[T]) -> None:
        error = call.exception()
        if over.done():
            return
        if error is None:
            tally.answer(node, call.result())
        elif isinstance(error, EblaError):
            tally.error(node, error)
        else:
            over.set_exception(error)
            return
        verdict = tally.verdict()
        if isinstance(verdict, EblaError):
            over.set_exception(verdict)
        elif verdict:
            over.set_result(None)

    for node, call in calls.items():
        call.add_done_callback(lambda call, node=node: done(node, call))  # type: ignore[misc]
    try:
        async with limit:
            await over
    except TimeoutError:
        raise tally.failed() from None
    return tally.in_order()


def each(
    world: World, nodes: Sequence[str], ask: Callable[[str], Awaitable[T]]
) -> dict[str, asyncio.Future[T]]:
    """Ask every node at once, in no order with other requests."""
    calls: dict[str, asyncio.Future[T]] = {}

    async def one(node: str, answer: asyncio.Future[T]) -> None:
        try:
            found = await ask(node)
        except EblaError as error:
            answer.set_exception(error)
        else:
            answer.set_result(found)

    for node in nodes:
        answer = calls[node] = asyncio.get_running_loop().create_future()
        world.spawn(one(node, answer), f"ask {node}")
    return calls


async def call_nodes(
    world: World,
    options: JournalOptions,
    what: str,
    method: str,
    request: msgspec.Struct,
    reply: type[T],
    timeout_s: float,
    *,
    needed: int | None = None,
) -> dict[str, T]:
    """Make one call to every node of the journal, and wait for a majority, or for `needed` nodes."""

    def ask(node: str) -> Awaitable[T]:
        return world.network.call(node, method, request, reply, timeout_s)

    calls = each(world, options.nodes, ask)
    return await majority(options.journal.name, what, calls, needed or options.majority)


def require_same_nodes(journal: str, mine: Sequence[str], theirs: Mapping[str, Sequence[str]]) -> None:
    """Require the same nodes of all: with different nodes, writers could have disjoint majorities."""
    for node, nodes in theirs.items():
        if list(nodes) != list(mine):
            raise InvalidArgument(
                f"journal {journal} was formatted with the nodes {', '.join(nodes)}, as {node} says, not with "
                f"{', '.join(mine)}"
            )
