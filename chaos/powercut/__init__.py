"""Power cuts and damage at rest: the real writes of the storage layer are recorded, cut off at any event, and read again.

    python -m ebla.chaos.powercut --cuts 2000 --flips 2000 --seed 1 [--json]

**Recording.** A process runs the real roles, a master and a tablet server, over real LmdbDisks: tables are created and dropped,
clients write, followers follow, logs are trimmed and moved, both roles end abruptly and start again (life/life.py,
life/machine.py, life/ghosts.py, recording/lanes.py). Every write, sync and change of names is logged, LMDB's through the slots of
its extension module (recording/watch.py, recording/calls.py, recording/slots.py). The same log has every request and every
answer, in the same order (recording/events.py). At its end the log must produce exactly the files on the disk, or the recording
is refused. CannotRecord says that a machine cannot record.

**The model of the disk** is in cuts/platter.py. In short: unsynced sectors of 512 bytes, pages, whole writes, sizes and names may
each be there or not; a rename is atomic; a sync promises the state when it began; LMDB's roots are written through an O_DSYNC
descriptor, and such a write promises itself.

**Replay.** A cut's seed draws the moment and the remaining data (cuts/cuts.py). The data is written to a directory, the real
roles start on it, and every promise of their answers before the cut is checked (recording/facts.py, cuts/verify.py): every
acknowledged row, entry, vote, flushed position, table and answer is there; a request under way took place wholly or not at all;
no tablet is half made or half deleted; and the roles continue to work. A recording may itself be of a recovery, so cuts during
recovery are included.

**Damage.** Bits are flipped in live pages, bytes and sectors zeroed, pages swapped or replaced by an older state (damage/btree.py,
damage/damage.py). The roles then read everything (damage/survey.py), and every answer must be the one that was written, or a
refusal (damage/flips.py). For wrong answers damage/audit.py says which further checks would have found the damage.

The tool must find planted defects (planted.py). Start with runs.py; report.py makes the figures.
"""
