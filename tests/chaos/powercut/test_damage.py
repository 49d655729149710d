"""Damage hits live pages, and the worst answer decides the outcome."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from ebla.chaos.powercut.damage.btree import FREE, MAIN, UNUSED, File, Page
from ebla.chaos.powercut.damage.flips import CHECK, END, REFUSAL, compare
from ebla.chaos.powercut.damage.survey import Ended, Refused, Wrong
from ebla.chaos.powercut.forks import LATE
from ebla.storage.logs.entries import Position

LARGE = 9000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("lmdb")
    with lmdb.open(str(path), map_size=1 << 24, max_dbs=4) as environment:
        rows = environment.open_db(b"rows")
        for _ in range(3):  # to fill the free list
            with environment.begin(write=True) as transaction:
                for row in range(1000):
                    transaction.put(b"key-%05d" % row, b"value-%05d" % row * 3, db=rows)
                transaction.put(b"large", b"L" * LARGE, db=rows)
    return (path / "data.mdb").read_bytes()


def test_all_live_pages_of_a_file_are_found(data: bytes) -> None:
    live = File(data).live()
    kinds = {(page.kind, page.database) for page in live}
    assert {("newest root", ""), ("older root", ""), ("leaf", FREE), ("leaf", MAIN)} <= kinds
    assert {("branch", "rows"), ("leaf", "rows"), ("overflow", "rows")} <= kinds
    assert len({page.number for page in live}) == len(live) < len(data) // 4096
    (large,) = [page for page in live if page.kind == "overflow"]
    assert large.count == -(-(LARGE + 16) // 4096)


def test_every_byte_of_a_page_is_named_by_its_part(data: bytes) -> None:
    file = File(data)
    parts: dict[str, bytearray] = {}
    for page in file.live():
        if page.database == "rows" and page.kind != "branch":
            start = page.number * file.page_bytes
            for offset in range(page.count * file.page_bytes):
                parts.setdefault(file.part(page, offset), bytearray()).append(data[start + offset])
    values = parts["value"]
    assert all(b"value-%05d" % row * 3 in values for row in range(1000))
    assert b"L" * LARGE in values
    assert all(b"key-%05d" % row in parts["key"] for row in range(1000))
    assert UNUSED in parts


def test_a_root_page_has_its_root_and_the_seal_of_the_other_root(data: bytes) -> None:
    file = File(data)
    parts = [file.part(Page(0, "newest root", ""), offset) for offset in range(4096)]
    assert parts == [*["root"] * 152, *[UNUSED] * 104, *["seal"] * 32, *[UNUSED] * (4096 - 288)]


WANTED = {"row t 1": {"k": 1}, "row t 2": None, "scan t": {1: "a", 2: "b"}, "digest t": (2, "x")}


@pytest.mark.parametrize(
    ("changed", "outcome", "noticed"),
    [
        ({}, "right", False),
        ({"row t 1": Refused("bad")}, "refused", True),
        ({"role": Ended("bad")}, "ended", True),
        ({"row t 1": None}, "missing", False),
        ({"row t 1": None, "scan t": Refused("bad")}, "missing", True),
        ({"row t 1": {"k": 2}}, "wrong", False),
        ({"row t 2": {"k": 2}}, "wrong", False),
        ({"scan t": {1: "a"}}, "missing", False),
        ({"scan t": {1: "a", 2: "c"}}, "wrong", False),
        ({"scan t": {1: "a", 2: "b", 3: "c"}}, "wrong", False),
        ({"scan t": Wrong("keys twice")}, "wrong", False),
        ({"scan t": {}, "role": Ended("bad")}, "missing", True),
        ({"row t 1": None, "digest t": (1, "y")}, "missing", True),
        ({"digest t": (1, "y")}, "refused", True),
    ],
)
def test_the_worst_answer_decides_the_outcome(
    changed: dict[str, object], outcome: str, noticed: bool
) -> None:
    judgement = compare(WANTED, {**WANTED, **changed})
    assert (judgement.outcome, bool(judgement.noticed_by)) == (outcome, noticed)


def test_the_signs_of_a_silent_loss_are_named() -> None:
    def signs(**changed: object) -> tuple[str, ...]:
        names = {"digest": "digest t", "scan": "scan t", "role": "role"}
        return compare(
            WANTED, {**WANTED, "row t 1": None, **{names[name]: each for name, each in changed.items()}}
        ).noticed_by

    assert signs() == ()
    assert signs(digest=(1, "y")) == (CHECK,)
    assert signs(digest=Refused("bad")) == (REFUSAL, CHECK), "the check gets the refusal of the replica"
    assert signs(scan=Refused("bad"), role=Ended("bad")) == (REFUSAL, END)


def test_a_case_in_an_endless_loop_is_ended_and_its_place_is_reported(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from ebla.chaos.powercut import forks\n"
    code += "def in_circles(base, pipe):\n    while True: pass\n"
    code += "print(forks.run(in_circles, Path(sys.argv[1]), timeout_s=60.0, cpu_s=1)[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{LATE}: in_circles in <string>"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_answer_is_not_a_wrong_answer() -> None:
    assert compare(WANTED, {"start": Refused("bad")}).outcome == "refused"


def test_an_unknown_replica_is_an_outcome_of_its_own() -> None:
    assert compare({"superblock t": "is"}, {"superblock t": None}).outcome == "unknown"


def test_a_log_that_ends_earlier_is_a_loss() -> None:
    long, short = Position(9, 1, 9), Position(8, 1, 8)
    assert compare({"log t": long}, {"log t": short}).outcome == "missing"
    assert compare({"log t": short}, {"log t": long}).outcome == "wrong"


def test_a_log_may_have_extra_entries() -> None:
    assert compare({"entries t": {2: "b"}}, {"entries t": {1: "a", 2: "b"}}).outcome == "right"
    assert compare({"entries t": {1: "a", 2: "b"}}, {"entries t": {2: "b"}}).outcome == "missing"
    assert compare({"entries t": {2: "b"}}, {"entries t": {2: "c"}}).outcome == "wrong"
