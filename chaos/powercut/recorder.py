"""Make one recording, in a process of its own: `python -m ebla.chaos.powercut.recorder BASE OUT PLAN [RECORDING SEED]`.

With RECORDING and SEED it records how the roles recover from that cut, instead of a life from the beginning: cuts of such a
recording are cuts during recovery.

At the end the result of the logged events is compared with the disk, byte by byte: a write that was not logged shows here.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ebla.actors import deadlines
from ebla.chaos.powercut import planted
from ebla.chaos.powercut.cuts.cuts import Moments
from ebla.chaos.powercut.cuts.platter import LOCK_FILE, Image, Platter
from ebla.chaos.powercut.cuts.verify import Unborn, Verify, both
from ebla.chaos.powercut.life.life import Life
from ebla.chaos.powercut.life.machine import Machine
from ebla.chaos.powercut.recording.events import Plan, Point, Recording, RoleEvent, load, save
from ebla.chaos.powercut.recording.facts import Facts
from ebla.chaos.powercut.recording.slots import CannotRecord
from ebla.chaos.powercut.recording.watch import Watch
from ebla.chaos.powercut.runs import CANNOT, UNBORN


def record_life(base: Path, plan: Plan) -> Recording:
    """`base` is an empty directory."""
    planted.plant(plan.planted)
    watch, facts = Watch(base), Facts()
    first = watch.begin()

    async def live() -> None:
        machine = Machine(base, data_dirs=plan.data_dirs, seed=plan.seed, say=both(watch.say, facts))
        await Life(machine, facts, plan).live()
        await machine.stop_all()

    deadlines.run(live())
    watch.end()
    return conclude(watch, plan, first)


def record_recovery(base: Path, earlier: Recording, seed: int) -> Recording:
    """Record a recovery. Raises Unborn if no role had answered before the cut."""
    rng = random.Random(seed)
    at = Moments(earlier).draw(rng)
    platter, facts = Platter(earlier.events), Facts()
    platter.advance(at)
    platter.cut(rng).lay(base, earlier.root)
    watch = Watch(base)
    watch.begin()
    for event in earlier.events[:at]:
        facts.take(event)
        if isinstance(event, RoleEvent) and not isinstance(event, Point):
            watch.say(event)
    first = len(watch.events)
    deadlines.run(Verify(base, facts, earlier.plan, seed, watch.say).everything())
    watch.end()
    return conclude(watch, earlier.plan, first)


def conclude(watch: Watch, plan: Plan, first: int) -> Recording:
    if watch.defect is not None:
        raise CannotRecord(f"a write could not be logged: {watch.defect!r}") from watch.defect
    platter = Platter(watch.events)
    platter.advance(len(watch.events))
    missed = list(differences(platter.whole(), watch.root))
    if missed:
        raise CannotRecord(
            f"the log does not produce the files on the disk, so a write was not logged: {'; '.join(missed[:5])}"
        )
    return Recording(plan, str(watch.root), watch.events, first)


def differences(image: Image, root: Path) -> Iterator[str]:
    """The differences between a tree of the model and a directory on disk, except for the contents of lock files."""
    pending = [(0, root)]
    while pending:
        node, directory = pending.pop()
        names = image.tree[node]
        there = {path.name: path for path in directory.iterdir()}
        for name in sorted(set(names) ^ set(there)):
            yield f"{directory / name} is {'only on the disk' if name in there else 'only in the log'}"
        for name in sorted(set(names) & set(there)):
            path, found = there[name], names[name]
            if found in image.tree:
                pending.append((found, path))
            elif found in image.links:
                if str(path.readlink()) != image.links[found]:
                    yield f"{path} leads to {path.readlink()}, not to {image.links[found]}"
            elif name == LOCK_FILE:
                if path.stat().st_size != len(image.files[found]):
                    yield f"{path} has another size"
            elif path.read_bytes() != image.files[found]:
                yield f"{path} has other contents"


def main() -> int:
    base, out, plan, *earlier = sys.argv[1:]
    logging.disable(logging.WARNING)
    try:
        if earlier:
            recording = record_recovery(Path(base), load(Path(earlier[0])), int(earlier[1]))
        else:
            recording = record_life(Path(base), msgspec.json.decode(plan, type=Plan))
    except CannotRecord as error:
        print(error, file=sys.stderr)
        return CANNOT
    except Unborn:
        return UNBORN
    save(recording, Path(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
