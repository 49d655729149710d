"""Turns chosen bits of a recording's live rows, with some of storage's checks switched off:

    python -m tests.chaos.powercut.unchecked CHECKS RECORDING SCRATCH NUMBER...

CHECKS is one of

    all          every check is made
    large        files are not checked as a whole at a start, as if they were large
    believing    the same, and storage believes pages, neighbours and absences, and scrubs nothing

Only bits that may lead a read of rows astray are tried: in the leaves of tablets that the survey reads, beside the
values. The bits of a recording are numbered from 0 in a fixed random order, the parts of a page in turn. Each NUMBER
gives one line of JSON, a Flip whose seed is the number.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ebla.chaos.powercut.damage.btree import Page
from ebla.chaos.powercut.damage.damage import BIT, Damage, Target
from ebla.chaos.powercut.damage.flips import Bench, Flip
from ebla.chaos.powercut.recording.events import Recording, load
from ebla.chaos.powercut.recording.facts import Facts
from ebla.storage.lmdb import structure
from ebla.storage.tablets import row_tree

ALL, LARGE, BELIEVING = "all", "large", "believing"
ROWS = "rows"
ASTRAY = ("key", "page pointers", "node header")


class Place(NamedTuple):
    """`offset` in the page."""

    path: str
    page: Page
    offset: int
    part: str


def believe(*_: Any, **__: Any) -> None:
    """Check nothing."""


async def scrub_nothing(*_: Any) -> int:
    return 0


CHECKS: dict[str, list[tuple[Any, str, Any]]] = {
    LARGE: [(structure, "check", believe)],
    BELIEVING: [
        (structure, "check", believe),
        (row_tree, "require_absent", believe),
        (row_tree, "require_edges", believe),
        (row_tree, "scrub", scrub_nothing),
    ],
}


def places(target: Target, tablets: set[str]) -> list[Place]:
    found: dict[str, list[Place]] = {part: [] for part in ASTRAY}
    for path, (_, file) in target.files["data"].items():
        leaves = [page for page in file.live() if (page.kind, page.database) == ("leaf", ROWS)]
        for page in leaves if Path(path).parent.name in tablets else ():
            for offset in range(file.page_bytes):
                part = file.part(page, offset)
                if part in found:
                    found[part].append(Place(path, page, offset, part))
    for part, some in found.items():
        random.Random(part).shuffle(some)
    return [place for place in chain(*zip_longest(*found.values())) if place]


def flips(recording: Recording, numbers: Iterable[int], scratch: Path) -> Iterator[Flip]:
    facts = Facts()
    for event in recording.events:
        facts.take(event)
    target = Target(recording)
    bench = Bench(recording, facts, target.image, scratch)
    kept = {name for name, known in facts.tablets.items() if not (known.deleted or known.leaving)}
    bits = places(target, kept - set(facts.groups))  # followers' rows are read late
    for number in numbers:
        place = bits[number]
        node, file = target.files["data"][place.path]
        data = bytearray(file.data)
        data[place.page.number * file.page_bytes + place.offset] ^= 1 << number % 8
        damage = Damage(BIT, "data", place.path, place.page, place.part, True, bytes(data))
        found = bench.judge(node, damage)
        yield Flip(number, BIT, True, "data", place.path, f"leaf {ROWS}", place.part, found)


def main() -> None:
    checks, recording, scratch, *numbers = sys.argv[1:]
    logging.disable(logging.WARNING)
    for owner, name, instead in CHECKS.get(checks, []):
        assert hasattr(owner, name), f"there is no {name} to switch off"
        setattr(owner, name, instead)
    for flip in flips(load(Path(recording)), map(int, numbers), Path(scratch)):
        print(msgspec.json.encode(flip).decode(), flush=True)


if __name__ == "__main__":
    main()
