"""Replay power cuts of one recording: draw the moment and the remaining data, write them to a directory, verify.

A cut is named by (recording, seed): the same pair gives the same moment and the same directory. Moments are drawn in three ways,
a third each: any event; just after an answer, when it binds and no sync followed yet; and within a few events of a named fault
point, so that rare transitions (creation, deletion, trim, checkpoint) are hit as often as frequent appends.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from ebla.actors import deadlines
from ebla.chaos.powercut import forks
from ebla.chaos.powercut.cuts.platter import Image, Platter
from ebla.chaos.powercut.cuts.verify import Lost, Unborn, Verify
from ebla.chaos.powercut.recording.events import Answered, Point, Recording
from ebla.chaos.powercut.recording.facts import Facts
from ebla.storage.errors import EblaError

KEPT, UNBORN, LOST, DIED = "kept", "unborn", "lost", "died"
NEAR_EVENTS = 24
TIMEOUT_S, CPU_S = 120.0, 30  # a cut takes a tenth of a second


class Verdict(msgspec.Struct, frozen=True):
    """`outcome`: kept; unborn (the directory is refused, and no answer was given from it); lost; died (the process ended)."""

    outcome: str
    why: str = ""
    leftovers: int = 0


class Cut(Verdict, frozen=True, kw_only=True):
    """`at`: the event before which the power failed. `point`: the fault point passed last. `unsynced`: how many sectors and names
    were not synced. `gone`: how many of these do not have their newest state."""

    seed: int
    at: int
    point: str
    unsynced: int
    gone: int
    answers: int
    seconds: float


class Moments:
    def __init__(self, recording: Recording) -> None:
        self.first, self.last = recording.first, len(recording.events)
        self.answers: list[int] = []
        self.points: dict[str, list[int]] = {}
        for at in range(self.first, self.last):
            event = recording.events[at]
            if isinstance(event, Answered):
                self.answers.append(at)
            elif isinstance(event, Point):
                self.points.setdefault(event.name, []).append(at)

    def draw(self, rng: random.Random) -> int:
        way = rng.randrange(3)
        if way == 0 and self.answers:
            return rng.choice(self.answers) + 1
        if way == 1 and self.points:
            at = rng.choice(self.points[rng.choice(sorted(self.points))])
            return min(self.last, at + 1 + rng.randrange(NEAR_EVENTS))
        return rng.randint(self.first, self.last)


def replay(recording: Recording, seeds: Iterable[int], scratch: Path) -> Iterator[Cut]:
    """Replay each cut in a forked process, in the order of the moments, not of the seeds."""
    moments = Moments(recording)
    drawn = []
    for seed in seeds:
        rng = random.Random(seed)
        drawn.append((moments.draw(rng), seed, rng))
    platter, facts, point = Platter(recording.events), Facts(), ""
    for at, seed, rng in sorted(drawn, key=lambda cut: cut[:2]):
        for event in recording.events[platter.at : at]:
            facts.take(event)
            if isinstance(event, Point):
                point = event.name
        platter.advance(at)
        began = time.monotonic()
        image, unsynced = platter.cut(rng), platter.unsynced
        verdict = _verdict(recording, image, facts, seed, scratch)
        yield Cut(
            **msgspec.structs.asdict(verdict),
            seed=seed,
            at=at,
            point=point,
            unsynced=unsynced,
            gone=image.choice.lost,
            answers=facts.answers,
            seconds=time.monotonic() - began,
        )


def _verdict(recording: Recording, image: Image, facts: Facts, seed: int, scratch: Path) -> Verdict:
    def case(base: Path, pipe: BinaryIO) -> None:
        image.lay(base, recording.root)
        pipe.write(msgspec.json.encode(examine(base, facts, recording, seed)))

    answer, status = forks.run(case, scratch, timeout_s=TIMEOUT_S, cpu_s=CPU_S)
    if status:
        return Verdict(DIED, f"the process ended: {status}")
    return msgspec.json.decode(answer, type=Verdict)


def examine(base: Path, facts: Facts, recording: Recording, seed: int) -> Verdict:
    """Verify a directory in this process; an error is part of the verdict."""
    verify = Verify(base, facts, recording.plan, seed)
    try:
        deadlines.run(verify.everything())
    except Unborn as error:
        return Verdict(UNBORN, str(error))
    except Lost as error:
        return Verdict(LOST, str(error))
    except (EblaError, AssertionError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Verdict(LOST, f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})")
    return Verdict(KEPT, leftovers=len(verify.leftovers))
