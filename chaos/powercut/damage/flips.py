"""Damage live pages of data.mdb files, and judge the answers.

A case is named by (recording, seed). The roles start on the damaged directory, in a process of their own, and read everything
(survey.py). The worst answer counts:

    right     every answer is as it was written; the damaged place is not read
    refused   a typed error instead of an answer, and no wrong answer
    ended     the process ended (SIGBUS inside LMDB's map, an assertion): loud
    hung      the process does not end, and neither answers nor reports an error
    unknown   a server does not know a replica any more: requests get TabletNotFound, and no answer is wrong
    missing   a written value was silently answered as absent
    wrong     an answer is not the written value

The last two and `hung` are failures. `noticed_by` lists other signs of the damage in the same survey: another refused answer, the
end of the process, or the digest of the tablet, which `ebla check --checksum` compares with those of other replicas. `audits`
lists checks that storage does not make and that would have found the damage (audit.py).
"""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ebla.actors import deadlines
from ebla.chaos.powercut import forks
from ebla.chaos.powercut.cuts.platter import Image
from ebla.chaos.powercut.damage import audit
from ebla.chaos.powercut.damage.damage import BIT, CATALOG, DATA_FILE, KINDS, Damage, Target
from ebla.chaos.powercut.damage.survey import Answers, Ended, Hung, Refused, Survey, Wrong
from ebla.chaos.powercut.recording.events import Recording
from ebla.chaos.powercut.recording.facts import Facts
from ebla.chaos.powercut.recording.lanes import CODEC
from ebla.storage.logs.entries import Position

OUTCOMES = ("right", "refused", "ended", "unknown", "hung", "missing", "wrong")
RIGHT, REFUSED, ENDED, UNKNOWN, HUNG, MISSING, WRONG = OUTCOMES
FAILURES = (HUNG, MISSING, WRONG)
TIMEOUT_S, CPU_S = 60.0, 10  # a survey takes a twentieth of a second, on a very busy machine seconds
BASELINES_MAX = 10

REFUSAL, END, CHECK = "a refusal of something else", "the end of the process", "ebla check --checksum"


class Judgement(msgspec.Struct, frozen=True):
    """`read`: the names of missing or wrong answers."""

    outcome: str
    why: str = ""
    read: tuple[str, ...] = ()
    noticed_by: tuple[str, ...] = ()
    audits: tuple[str, ...] = ()


class Flip(msgspec.Struct, frozen=True):
    seed: int
    damage: str
    aimed: bool
    area: str
    file: str
    page: str
    part: str
    found: Judgement


def flip(
    recording: Recording, seeds: Iterable[int], scratch: Path, kinds: tuple[str, ...] = (BIT,)
) -> Iterator[Flip]:
    """Run each case in a forked process."""
    facts = Facts()
    for event in recording.events:
        facts.take(event)
    target = Target(recording)
    bench = Bench(recording, facts, target.image, scratch)
    for seed in seeds:
        rng = random.Random(seed)
        node, damage = target.damage(rng, rng.choice(kinds))
        page = f"{damage.page.kind} {damage.page.database}".strip()
        found = bench.judge(node, damage)
        yield Flip(seed, damage.kind, damage.aimed, damage.area, damage.file, page, damage.part, found)


def spoil(recording: Recording, seeds: Iterable[int], scratch: Path) -> Iterator[Flip]:
    """As `flip`, with all kinds of damage but single bits."""
    return flip(recording, seeds, scratch, tuple(kind for kind in KINDS if kind != BIT))


@dataclass
class Bench:
    """Judges damaged directories, one after the other."""

    recording: Recording
    facts: Facts
    image: Image
    scratch: Path
    _baselines: dict[bool, Answers] = field(default_factory=dict)

    def judge(self, node: int, damage: Damage) -> Judgement:
        master = damage.area == CATALOG
        if master not in self._baselines:
            self._baselines[master] = self._baseline(master)
        answers, status = self._survey(master, damage)
        if status:
            answers["process"] = Hung(status) if status.startswith(forks.LATE) else Ended(status)
        judgement = compare(self._baselines[master], answers)
        if judgement.outcome in (MISSING, WRONG):
            return msgspec.structs.replace(judgement, audits=self._audits(node, damage, judgement.read))
        return judgement

    def _survey(self, master: bool, damage: Damage | None = None) -> tuple[Answers, str]:
        """The answers until the end of the process, and how the process ended if it failed."""

        def case(base: Path, pipe: BinaryIO) -> None:
            def note(name: str, answer: Any) -> None:
                pickle.dump((name, answer), pipe)

            self.image.lay(base, self.recording.root)
            if damage is not None:
                (base / damage.file).write_bytes(damage.data)
            survey = Survey(base, self.facts, self.recording.plan, note, master=master)
            deadlines.run(survey.everything())

        output, status = forks.run(case, self.scratch, timeout_s=TIMEOUT_S, cpu_s=CPU_S)
        answers: Answers = {}
        stream = io.BytesIO(output)
        while True:
            try:
                name, answer = pickle.load(stream)
            except (EOFError, pickle.UnpicklingError):  # the end, perhaps in the middle of an answer
                return answers, status
            answers[name] = answer

    def _baseline(self, master: bool) -> Answers:
        """The answers without damage; they must agree with the facts.

        A survey with a refused answer is repeated: on a busy machine an answer may be late.
        """
        for _ in range(BASELINES_MAX):
            found, status = self._survey(master)
            if not status and not any(isinstance(value, Refused) for value in found.values()):
                break
        assert not status, f"the directory cannot be read without damage: {status}"
        assert not any(isinstance(value, Refused | Ended | Wrong) for value in found.values()), found
        for tablet, known in self.facts.tablets.items():
            if not master and known.created and not known.deleted and tablet not in self.facts.groups:
                rows = {key: row for lane in self.facts.lanes_of(tablet) for key, row in lane.rows.items()}
                assert found[f"scan {tablet}"] == rows, f"{tablet} does not hold the rows that were written"
        return found

    def _audits(self, node: int, damage: Damage, read: tuple[str, ...]) -> tuple[str, ...]:
        rows = [name.split() for name in read if name.startswith("row ")]
        absent = [CODEC.encode_key({"k": int(key)}) for _, _, key in rows]
        tablet = Path(damage.file).parent.name

        def case(base: Path, pipe: BinaryIO) -> None:
            file = base / DATA_FILE
            file.write_bytes(damage.data)
            healthy = self.image.files[node]
            for check in audit.findings(file, healthy, tablet=tablet, absent=absent, scratch=base):
                pipe.write(f"{check}\n".encode())

        found, status = forks.run(case, self.scratch, timeout_s=TIMEOUT_S, cpu_s=CPU_S)
        return (*found.decode().split(), *(["the end of the process"] if status else []))


def compare(baseline: Answers, found: Answers) -> Judgement:
    refused = [f"{name}: {value.why}" for name, value in found.items() if isinstance(value, Refused)]
    ended = [value.why for value in found.values() if isinstance(value, Ended)]
    hung = [value.why for value in found.values() if isinstance(value, Hung)]
    worse: dict[str, list[str]] = {UNKNOWN: [], MISSING: [], WRONG: []}
    shown: dict[str, str] = {}
    differ = False
    for name, wanted in baseline.items():
        answer = found.get(name, wanted)  # a missing entry was not reached
        if isinstance(answer, Refused) or is_same(name, answer, wanted):
            continue
        if name.startswith("digest"):
            differ = True
            continue
        outcome = MISSING if is_less(answer, wanted) else WRONG
        if answer is None and name.startswith("superblock"):
            outcome = UNKNOWN
        worse[outcome].append(name)
        shown.setdefault(outcome, f"{name}: {str(answer)[:300]} instead of {str(wanted)[:300]}")
    differ |= any(isinstance(value, Refused) for name, value in found.items() if name.startswith("digest"))
    signs = ((REFUSAL, bool(refused)), (END, bool(ended)), (CHECK, differ))
    noticed = tuple(sign for sign, seen in signs if seen)
    for outcome in (WRONG, MISSING):
        if worse[outcome]:
            return Judgement(outcome, shown[outcome], tuple(worse[WRONG] + worse[MISSING]), noticed)
    if hung:
        return Judgement(HUNG, hung[0])
    if worse[UNKNOWN]:
        return Judgement(UNKNOWN, shown[UNKNOWN], tuple(worse[UNKNOWN]), noticed)
    if ended:
        return Judgement(ENDED, ended[0], noticed_by=noticed)
    if refused or differ:
        return Judgement(REFUSED, refused[0] if refused else "the digest differs", noticed_by=noticed)
    return Judgement(RIGHT)


def is_same(name: str, answer: Any, wanted: Any) -> bool:
    """Whether the answer is right. A log may have more entries than it must: those that the rows include."""
    if name.startswith("entries") and isinstance(answer, dict):
        return all(answer.get(index) == entry for index, entry in wanted.items())
    return bool(answer == wanted)


def is_less(answer: Any, wanted: Any) -> bool:
    """Whether the answer is the right one with parts silently missing."""
    if isinstance(answer, dict) and isinstance(wanted, dict):
        return all(wanted[key] == value for key, value in answer.items() if key in wanted) and not (
            set(answer) - set(wanted)
        )
    if isinstance(answer, Position) and isinstance(wanted, Position):
        return answer.index < wanted.index
    return answer is None
