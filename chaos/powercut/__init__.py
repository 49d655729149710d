"""Power cuts for real, and damage at rest: what the storage layer really writes, cut off anywhere, and read again.

    python -m ebla.chaos.powercut --cuts 2000 --flips 2000 --seed 1 [--json]

**Recording.** A process runs the real roles, a master and a tablet server, over real LmdbDisks: tables come and go,
clients write, followers follow, logs are trimmed and moved, both roles end abruptly and start again (life/life.py,
life/machine.py, life/ghosts.py, recording/lanes.py). Every write, sync and change of names that they make is logged, LMDB's through the
slots of its extension module (recording/watch.py, recording/calls.py, recording/slots.py), and in the same log, in the same order, every request
and every answer (recording/events.py). At its end the log must make exactly the files that lie on the disk, or the recording is
refused. A machine where this cannot be done is told so, by CannotRecord.

**The model of the disk** is told in cuts/platter.py. In short: of what was not synced, sectors of 512 bytes, pages, whole
writes, sizes and names may each be there or not; a rename is atomic; a sync promises what was there when it began;
LMDB's roots go through an O_DSYNC descriptor, and such a write promises itself.

**Replay.** A cut is drawn by its seed: when, and what is left (cuts/cuts.py). It is laid down, the real roles are started on
it, and held to what they had answered by then (recording/facts.py, cuts/verify.py): every acknowledged row, entry, vote, flushed
position, table and answer is there, what was under way is there wholly or not at all, nothing is half made or half
deleted, and everything goes on working. A recording may itself be of a recovery, so cuts during recovery are met too.

**Damage.** Bits are turned in live pages, bytes and sectors zeroed, pages swapped or taken back to an older state
(damage/btree.py, damage/damage.py); the roles then read everything (damage/survey.py), and every answer must be the one that was written,
or a refusal (damage/flips.py). Of what came out wrong is told which checks would have found it (damage/audit.py).

The tool itself is doubted by defects that it must find (planted.py). Start with runs.py; report.py makes the figures.
"""

from __future__ import annotations

from ebla.chaos.powercut.cuts.cuts import Cut
from ebla.chaos.powercut.damage.flips import Flip
from ebla.chaos.powercut.recording.events import Plan
from ebla.chaos.powercut.recording.slots import CannotRecord
from ebla.chaos.powercut.runs import flip, record, record_recovery, replay, spoil

__all__ = ["CannotRecord", "Cut", "Flip", "Plan", "flip", "record", "record_recovery", "replay", "spoil"]
