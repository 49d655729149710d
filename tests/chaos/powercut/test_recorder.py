"""Every write is recorded, those of LMDB included, and a missed write makes the recording void."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb.cpython
import pytest

from ebla.chaos.powercut.recorder import conclude
from ebla.chaos.powercut.recording.events import Plan, load
from ebla.chaos.powercut.recording.slots import CannotRecord, Slots
from ebla.chaos.powercut.recording.watch import Watch
from ebla.storage.errors import Damaged

CHILD = Path(__file__).parent / "watched.py"
ROOT = Path(__file__).parents[3]


def watched(verb: str, root: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(CHILD), verb, str(root)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_an_lmdb_commit_is_recorded_as_data_sync_and_root(tmp_path: Path) -> None:
    found = watched("commits", tmp_path)
    assert found["differences"] == []
    data = next(event[3] for event in found["events"] if event[0] == "Made" and event[2] == "data.mdb")
    kinds = [event[0] for event in found["events"] if event[0] == "WriteThrough" or event[1] == data]
    assert kinds == ["Write", *2 * ["Write", "Sync", "Write", "WriteThrough"]], (
        "creation of the file, and two commits"
    )
    sizes = [event[3] for event in found["events"] if event[0] == "Write" and event[1] == data]
    assert sizes[3] > 20_000, "the larger commit is one vectored write"


def test_every_way_of_python_to_change_files_is_recorded(tmp_path: Path) -> None:
    found = watched("files", tmp_path)
    assert found["differences"] == []
    kinds = {event[0] for event in found["events"]}
    assert kinds == {"Made", "Write", "Sync", "Truncate", "Renamed", "Removed"}
    assert sum(event[0] == "Renamed" for event in found["events"]) == 3
    assert ["Removed", 0, "link"] in found["events"]


def test_an_unrecorded_write_is_noticed(tmp_path: Path) -> None:
    (difference,) = watched("past_the_log", tmp_path)["differences"]
    assert difference.endswith("file has other contents")


def test_the_slots_of_a_module_are_found() -> None:
    slots = Slots(Path(lmdb.cpython.__file__))
    assert {"pwrite", "writev", "fdatasync", "open"} <= set(slots.addresses)
    assert not slots.replace("no_function_of_this_name", None)


def test_a_machine_that_cannot_record_reports_why(tmp_path: Path) -> None:
    with pytest.raises(CannotRecord, match="not among the modules that this process has loaded"):
        copy = tmp_path / "copy.so"
        copy.write_bytes(Path(lmdb.cpython.__file__).read_bytes())
        Slots(copy)
    foreign = tmp_path / "foreign.so"
    foreign.write_bytes(b"\x7fELF\x01\x02" + bytes(100))
    with pytest.raises(CannotRecord, match="x86-64 and AArch64 only"):
        Slots(foreign)


def test_an_incomplete_recording_is_refused(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    (tmp_path / "file").write_bytes(b"not recorded")
    with pytest.raises(CannotRecord, match=r"so a write was not logged: .*file is only on the disk"):
        conclude(watch, Plan(), 0)


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"something else")
    with pytest.raises(Damaged, match="is no recording"):
        load(tmp_path / "file")
