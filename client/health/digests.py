"""Asks for the digests of all replicas of many tablets, each tablet as of one index of its log. checksums.py judges them.

The tablets are compared in waves. A wave is the next tablets of which no server has more than WAVE_REPLICAS. Each leader gets one
call for all tablets that it leads, and begins the checkpoints for which it has room; the others go to a later wave. Then each
server gets one call for its digests, and another one for those that were not ready.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ebla.actors import messages as m
from ebla.actors.errors import (
    AlreadyInProgress,
    NetworkError,
    NotLeader,
    NotRunning,
    Unavailable,
    outcomes,
)
from ebla.actors.world import Network
from ebla.health.survey import SERVER_S, ask, gathered, unanswered
from ebla.health.verdicts import Digests, Unanswered
from ebla.storage.errors import EblaError

DIGEST_S_MAX = 600.0  # of all tablets together
WAVE_REPLICAS = 100  # of one server, at the same time: their snapshots wait for each other
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
    deadline = _now() + timeout_s
    left = deque(tablet for info in infos for tablet in info.tablets if tablet.replicas)
    total = len(left)
    found: dict[str, Digests] = {}
    progress(0, total)
    while left and _now() < deadline:
        wave = _wave(left)
        begun = await _begin(network, wave, min(deadline, _now() + CHECKPOINT_S))
        ready: list[tuple[m.TabletLocation, int]] = []
        for location in reversed(wave):
            index = begun.get(location.tablet)
            if index is None:
                left.appendleft(location)
            elif isinstance(index, Unanswered):
                found[location.tablet] = Digests(0, {}, index)
            else:
                ready.append((location, index))
        found |= await _compare(network, ready, deadline)
        progress(len(found), total)
    late = Unanswered("TimedOut", f"its turn did not come within {timeout_s:g} s")
    return found | {location.tablet: Digests(0, {}, late) for location in left}


def _wave(left: deque[m.TabletLocation]) -> list[m.TabletLocation]:
    """Take the next tablets: at least one."""
    wave: list[m.TabletLocation] = []
    counts: Counter[str] = Counter()
    while left:
        counts.update(replica.address for replica in left[0].replicas)
        if wave and max(counts.values()) > WAVE_REPLICAS:
            break
        wave.append(left.popleft())
    return wave


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
            for tablet, outcome in zip(tablets, answer, strict=False):
                if isinstance(outcome, NotLeader | NetworkError | NotRunning):
                    asking[tablet].refused(address, outcome)
                    continue
                begun[tablet] = unanswered(outcome) if isinstance(outcome, EblaError) else outcome
                del asking[tablet]
            for tablet in tablets[len(answer) :]:
                del asking[tablet]
    none = Unanswered(Unavailable.__name__, "the tablet has no replica that answers in time")
    return begun | {tablet: unanswered(each.last) if each.last else none for tablet, each in asking.items()}


async def _start(
    network: Network, address: str, tablets: Sequence[str], timeout_s: float
) -> Sequence[int | EblaError]:
    """The indexes of the checkpoints, or the errors, of the first of these tablets."""
    request = m.ChecksumStart(tuple(tablets))
    try:
        answer = await network.call(address, "checksum_start", request, m.ChecksumStarted, timeout_s)
    except EblaError as error:
        return [error] * len(tablets)
    return outcomes(answer.indexes, answer.errors)


# -- digests


async def _compare(
    network: Network, begun: Sequence[tuple[m.TabletLocation, int]], deadline: float
) -> dict[str, Digests]:
    """The digests of the replicas of these tablets at their checkpoints, with one call to each server."""
    asked: dict[str, list[tuple[str, int]]] = {}
    for location, index in begun:
        for replica in location.replicas:
            asked.setdefault(replica.address, []).append((location.tablet, index))
    answers = await gathered([_of_server(network, each, some, deadline) for each, some in asked.items()])
    found = dict(zip(asked, answers, strict=True))
    return {
        location.tablet: _digests_of(
            index, {r.uuid: found[r.address][location.tablet] for r in location.replicas}
        )
        for location, index in begun
    }


def _digests_of(index: int, replicas: dict[str, m.Digest | Unanswered]) -> Digests:
    answers = replicas.values()
    if all(isinstance(answer, Unanswered) and answer.kind == Unavailable.__name__ for answer in answers):
        nowhere = f"the checkpoint at index {index} was applied nowhere within {CHECKPOINT_S:g} s"
        return Digests(0, {}, Unanswered(Unavailable.__name__, nowhere))
    return Digests(index, replicas)


async def _of_server(
    network: Network, address: str, checkpoints: Sequence[tuple[str, int]], deadline: float
) -> dict[str, m.Digest | Unanswered]:
    """Ask until the deadline while replicas read their rows; end earlier for those that do not apply the checkpoint, or if the
    server is silent."""
    applied_by = min(deadline, _now() + CHECKPOINT_S)
    found: dict[str, m.Digest | Unanswered] = {}
    asked = list(checkpoints)
    while asked:
        wait_s = max(0.0, min(DIGEST_ASK_S, deadline - _now()))
        query = m.ChecksumQuery(tuple(asked), wait_s)
        answer = await ask(network, address, "checksum", query, m.ChecksumReply, wait_s + SERVER_S)
        if isinstance(answer, Unanswered):
            return found | {tablet: answer for tablet, _ in asked}
        again: list[tuple[str, int]] = []
        for checkpoint, outcome in zip(asked, outcomes(answer.digests, answer.errors), strict=True):
            if not isinstance(outcome, EblaError):
                found[checkpoint[0]] = outcome
            elif _now() < {AlreadyInProgress: deadline, Unavailable: applied_by}.get(type(outcome), 0.0):
                again.append(checkpoint)
            else:
                found[checkpoint[0]] = unanswered(outcome)
        asked = again
    return found


def _now() -> float:
    return asyncio.get_running_loop().time()
