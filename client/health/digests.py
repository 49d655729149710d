"""Asks for the digests of all replicas of many tablets, each tablet as of one index of its log. checksums.py judges them.

The tablets are compared in waves. A wave is the next tablets of which no server has more than ROOM replicas under way. Each leader
gets one call for all tablets that it leads, and begins the checkpoints for which it has room; the others go to a later wave. Then
each server gets one call for its digests, and another one for those that were not ready. A wave that has not ended after NEXT_S goes
on beside the next ones, so that a slow replica holds up no other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ebla.actors import messages as m
from ebla.actors.errors import (
    AlreadyInProgress,
    NetworkError,
    NotLeader,
    NotRunning,
    Throttled,
    Unavailable,
    outcomes,
)
from ebla.actors.world import Network
from ebla.health.survey import SERVER_S, ask, gathered, unanswered
from ebla.health.verdicts import Digests, Unanswered
from ebla.storage.errors import EblaError

DIGEST_S_MAX = 600.0  # of all tablets together
ROOM = 100  # replicas of one server under way: their snapshots wait for each other
NEXT_S = 2.0  # a wave that takes longer goes on beside the next one
BUSY_S = 0.2  # between two calls to leaders that have no room
CHECKPOINT_S = 10.0  # for the leaders to begin it, and again for a replica to apply it
DIGEST_ASK_S = 5.0  # one request; a replica that still reads is asked again


async def digests(
    network: Network,
    infos: Sequence[m.TableInfo],
    progress: Callable[[int, int], None] = lambda done, total: None,
    timeout_s: float = DIGEST_S_MAX,
) -> dict[str, Digests]:
    """Every replica's digest of every running tablet, within `timeout_s` for all tablets. Calls `progress(done, total)`. A tablet
    without a majority, or a server without an answer, takes some seconds."""
    comparison = _Comparison(network, _now() + timeout_s, progress)
    left = deque(tablet for info in infos for tablet in info.tablets if tablet.replicas)
    found = await comparison.of(left)
    late = Unanswered("TimedOut", f"its turn did not come within {timeout_s:g} s")
    return found | {location.tablet: Digests(0, {}, late) for location in left}


class _Comparison:
    """The waves of one comparison, and the digests that it has found."""

    def __init__(self, network: Network, deadline: float, progress: Callable[[int, int], None]) -> None:
        self._network = network
        self._deadline = deadline
        self._progress = progress
        self._under_way: Counter[str] = Counter()  # replicas, by server
        self._ended = asyncio.Event()  # a replica, or a wave, since the last wave was made
        self._found: dict[str, Digests] = {}

    async def of(self, left: deque[m.TabletLocation]) -> dict[str, Digests]:
        """The digests of these tablets; those whose turn does not come stay in `left`."""
        self._progress(0, total := len(left))
        waves: list[asyncio.Task[None]] = []
        try:
            while (left or any(not each.done() for each in waves)) and _now() < self._deadline:
                for each in waves:
                    if each.done():
                        each.result()  # an error here, not that of a role, ends all
                if wave := self._wave(left):
                    waves.append(asyncio.create_task(self._carry_out(wave, left, total)))
                    await asyncio.wait(waves[-1:], timeout=NEXT_S)
                else:
                    self._ended.clear()
                    with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                        await asyncio.wait_for(self._ended.wait(), self._deadline - _now())
            await asyncio.gather(*waves)
        finally:
            for each in waves:
                each.cancel()
        return self._found

    def _wave(self, left: deque[m.TabletLocation]) -> list[m.TabletLocation]:
        """Take the next tablets for which all their servers have room."""
        wave: list[m.TabletLocation] = []
        for _ in range(len(left)):
            location = left.popleft()
            if all(self._under_way[replica.address] < ROOM for replica in location.replicas):
                wave.append(location)
                self._under_way.update(replica.address for replica in location.replicas)
            else:
                left.append(location)
        return wave

    def _end(self, address: str) -> None:
        self._under_way[address] -= 1
        self._ended.set()

    async def _carry_out(
        self, wave: Sequence[m.TabletLocation], left: deque[m.TabletLocation], total: int
    ) -> None:
        try:
            await self._begin_and_compare(wave, left)
            self._progress(len(self._found), total)
        finally:
            self._ended.set()

    async def _begin_and_compare(
        self, wave: Sequence[m.TabletLocation], left: deque[m.TabletLocation]
    ) -> None:
        begun = await _begin(self._network, wave, min(self._deadline, _now() + CHECKPOINT_S))
        ready: list[tuple[m.TabletLocation, int]] = []
        later: list[m.TabletLocation] = []
        for location in reversed(wave):
            index = begun.get(location.tablet)
            if isinstance(index, int):
                ready.append((location, index))
                continue
            if index is None:
                later.append(location)
            else:
                self._found[location.tablet] = Digests(0, {}, index)
            for replica in location.replicas:
                self._end(replica.address)
        if later:
            if not ready:
                await asyncio.sleep(BUSY_S)
            left.extendleft(later)
            self._ended.set()
        await self._compare(ready)

    async def _compare(self, begun: Sequence[tuple[m.TabletLocation, int]]) -> None:
        """The digests of the replicas of these tablets at their checkpoints, with one call to each server."""
        asked: dict[str, list[tuple[str, int]]] = {}
        for location, index in begun:
            for replica in location.replicas:
                asked.setdefault(replica.address, []).append((location.tablet, index))
        answers = await gathered([self._of_server(each, some) for each, some in asked.items()])
        found = dict(zip(asked, answers, strict=True))
        for location, index in begun:
            replicas = {each.uuid: found[each.address][location.tablet] for each in location.replicas}
            self._found[location.tablet] = _digests_of(index, replicas)

    async def _of_server(
        self, address: str, checkpoints: Sequence[tuple[str, int]]
    ) -> dict[str, m.Digest | Unanswered]:
        """Ask until the deadline while replicas read their rows; end earlier for those that do not apply the checkpoint, or if the
        server is silent."""
        applied_by = min(self._deadline, _now() + CHECKPOINT_S)
        found: dict[str, m.Digest | Unanswered] = {}
        asked = list(checkpoints)
        while asked:
            wait_s = max(0.0, min(DIGEST_ASK_S, self._deadline - _now()))
            query = m.ChecksumQuery(tuple(asked), wait_s)
            answer = await ask(self._network, address, "checksum", query, m.ChecksumReply, wait_s + SERVER_S)
            parts: Sequence[m.Digest | Unanswered | EblaError]
            parts = (
                [answer] * len(asked)
                if isinstance(answer, Unanswered)
                else outcomes(answer.digests, answer.errors)
            )
            again: list[tuple[str, int]] = []
            until = {AlreadyInProgress: self._deadline, Unavailable: applied_by}
            for checkpoint, part in zip(asked, parts, strict=True):
                if isinstance(part, EblaError) and _now() < until.get(type(part), 0.0):
                    again.append(checkpoint)
                    continue
                found[checkpoint[0]] = unanswered(part) if isinstance(part, EblaError) else part
                self._end(address)
            asked = again
        return found


# -- checkpoints


@dataclass
class _Asking:
    """A tablet whose leader is asked: the one that the master names, or that the replicas name."""

    addresses: deque[str]
    last: EblaError | None = None

    @classmethod
    def of(cls, location: m.TabletLocation) -> _Asking:
        order = [replica.address for replica in location.replicas]
        return cls(deque([location.leader, *order] if location.leader else order))

    def refused(self, address: str, error: EblaError) -> None:
        self.last = error
        if isinstance(error, NotLeader) and error.leader and error.leader != address:
            self.addresses.appendleft(error.leader)


async def _begin(
    network: Network, wave: Sequence[m.TabletLocation], deadline: float
) -> dict[str, int | Unanswered]:
    """Begin the checkpoints, with one call to each leader. The index by tablet, or why there is none. Tablets for which their
    leader has no room now are left out."""
    begun: dict[str, int | Unanswered] = {}
    asking = {location.tablet: _Asking.of(location) for location in wave}
    for _ in range(2 * max(len(location.replicas) for location in wave)):
        left_s = min(SERVER_S, deadline - _now())
        asked: dict[str, list[str]] = {}
        for tablet, each in asking.items():
            if each.addresses and left_s > 0:
                asked.setdefault(each.addresses.popleft(), []).append(tablet)
        if not asked:
            break
        answers = await gathered([_start(network, each, some, left_s) for each, some in asked.items()])
        for (address, tablets), answer in zip(asked.items(), answers, strict=True):
            for tablet, outcome in zip(tablets, answer, strict=True):
                if isinstance(outcome, NotLeader | NetworkError | NotRunning):
                    asking[tablet].refused(address, outcome)
                    continue
                del asking[tablet]
                if not isinstance(outcome, Throttled):
                    begun[tablet] = unanswered(outcome) if isinstance(outcome, EblaError) else outcome
    none = Unanswered(Unavailable.__name__, "the tablet has no replica that answers in time")
    return begun | {tablet: unanswered(each.last) if each.last else none for tablet, each in asking.items()}


async def _start(
    network: Network, address: str, tablets: Sequence[str], timeout_s: float
) -> Sequence[int | EblaError]:
    """The indexes of the checkpoints, or the errors."""
    request = m.ChecksumStart(tuple(tablets))
    try:
        answer = await network.call(address, "checksum_start", request, m.ChecksumStarted, timeout_s)
    except EblaError as error:
        return [error] * len(tablets)
    return outcomes(answer.indexes, answer.errors)


# -- digests


def _digests_of(index: int, replicas: dict[str, m.Digest | Unanswered]) -> Digests:
    answers = replicas.values()
    if all(isinstance(answer, Unanswered) and answer.kind == Unavailable.__name__ for answer in answers):
        nowhere = f"the checkpoint at index {index} was applied nowhere within {CHECKPOINT_S:g} s"
        return Digests(0, {}, Unanswered(Unavailable.__name__, nowhere))
    return Digests(index, replicas)


def _now() -> float:
    return asyncio.get_running_loop().time()
