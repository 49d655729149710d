"""The process that runs cases: `python -m ebla.chaos.powercut.cases RECORDING KIND FIRST COUNT SCRATCH`.

It reads one recording, forks a child for each case, and prints a verdict a line, as JSON. It is a process of its own because a
process that forks must have no threads and no open environments, which its caller may have.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from ebla.chaos.powercut.cuts.cuts import Cut, replay
from ebla.chaos.powercut.damage.flips import Flip, flip, spoil
from ebla.chaos.powercut.recording.events import Recording, load

CUTS, FLIPS, SPOILS = "cuts", "flips", "spoils"
KINDS: dict[str, Callable[[Recording, Iterable[int], Path], Iterator[Cut | Flip]]] = {
    CUTS: replay,
    FLIPS: flip,
    SPOILS: spoil,
}


def main() -> int:
    file, kind, first, count, scratch = sys.argv[1:]
    logging.disable(logging.WARNING)
    recording = load(Path(file))
    # Otherwise each child would import this for the first time.
    pa.RecordBatch.from_pylist([{"k": 1}]).to_pylist()
    gc.collect()
    gc.freeze()
    encode = msgspec.json.Encoder().encode
    for done in KINDS[kind](recording, range(int(first), int(first) + int(count)), Path(scratch)):
        sys.stdout.write(encode(done).decode() + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
