"""The functions that make recordings and run cases: they start processes and return their results.

A recording is made in one process, cases are run in others (recorder.py, cases.py), so that the caller may have threads, open
environments and a Ray cluster. Directories are kept in memory if the system has a place for that.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from ebla.chaos.powercut.cuts.cuts import Cut
from ebla.chaos.powercut.damage.flips import Flip
from ebla.chaos.powercut.recording.events import Plan
from ebla.chaos.powercut.recording.slots import CannotRecord
from ebla.placement.interrupts import uninterrupted
from ebla.storage.errors import EblaError

T = TypeVar("T", Cut, Flip)

# Exit statuses of a recorder: this machine cannot record, stderr says why; there is nothing to recover.
CANNOT, UNBORN = 3, 4
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 256 << 20
RECORD_S = 120.0
RECOVERIES_MAX = 20  # seeds tried for a cut that leaves data to recover


class CaseFailed(EblaError):
    """The process that runs the cases ended early: a defect of this tool, or of the machine."""


def record(plan: Plan, out: Path) -> Path:
    """Record a life. Raises CannotRecord, with the reason, if that is not possible."""
    _record([str(out), msgspec.json.encode(plan).decode()])
    return out


def record_recovery(recording: Path, seed: int, out: Path) -> Path:
    """Record how the roles recover from the cut `seed` of a recording, or from the first later seed that leaves data."""
    for attempt in range(seed, seed + RECOVERIES_MAX):
        if _record([str(out), "", str(recording), str(attempt)]):
            return out
    raise CaseFailed(f"none of {RECOVERIES_MAX} cuts of {recording} left anything to recover")


def replay(recording: Path, seeds: range, *, jobs: int = 1) -> Iterator[Cut]:
    """Replay every cut with a seed of `seeds`, in any order."""
    return _cases(recording, "cuts", seeds, jobs, Cut)


def flip(recording: Path, seeds: range, *, jobs: int = 1) -> Iterator[Flip]:
    """Flip one bit in each case."""
    return _cases(recording, "flips", seeds, jobs, Flip)


def spoil(recording: Path, seeds: range, *, jobs: int = 1) -> Iterator[Flip]:
    """Damage more than a single bit in each case: see damage/damage.py."""
    return _cases(recording, "spoils", seeds, jobs, Flip)


def _record(arguments: list[str]) -> bool:
    """Run the recorder. Returns False if there was nothing to recover."""
    with _scratch() as base:
        command = [sys.executable, "-m", "ebla.chaos.powercut.recorder", str(base), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=RECORD_S, check=False)
        except subprocess.TimeoutExpired:
            raise CaseFailed(
                f"the recording took more than {RECORD_S:g} s; try again on a machine with less load"
            ) from None
    if done.returncode == CANNOT:
        raise CannotRecord(done.stderr.strip())
    if done.returncode not in (0, UNBORN):
        raise CaseFailed(f"the recorder ended with status {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.returncode == 0


def _cases(recording: Path, kind: str, seeds: range, jobs: int, result: type[T]) -> Iterator[T]:
    jobs = max(1, min(jobs, len(seeds)))
    bounds = [seeds.start + len(seeds) * job // jobs for job in range(jobs + 1)]
    with _scratch() as scratch:
        start: list[str] = [sys.executable, "-m", "ebla.chaos.powercut.cases", str(recording), kind]
        processes = [
            subprocess.Popen(
                [*start, str(first), str(stop - first), str(scratch)],
                stdout=subprocess.PIPE,
                start_new_session=True,  # a process group of its own: the cases that it forks end with it
            )
            for first, stop in pairwise(bounds)
        ]
        try:
            for line in _lines(processes):
                yield msgspec.json.decode(line, type=result)
            for process in processes:
                if process.wait() != 0:
                    raise CaseFailed(f"the cases of {recording} ended with status {process.returncode}")
        finally:
            with uninterrupted():
                for process in processes:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                        process.wait()


def _lines(processes: list[subprocess.Popen[bytes]]) -> Iterator[bytes]:
    """The lines that the processes print, until all have ended."""
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read(process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                lines.put(line)
        lines.put(None)

    for process in processes:
        threading.Thread(target=read, args=(process,), daemon=True).start()
    left = len(processes)
    while left:
        line = lines.get()
        if line is None:
            left -= 1
        else:
            yield line


@contextmanager
def _scratch() -> Iterator[Path]:
    """An empty directory, in memory if possible."""
    memory = (
        MEMORY if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN else None
    )
    directory = Path(tempfile.mkdtemp(prefix="ebla-powercut-", dir=memory))
    try:
        yield directory
    finally:
        with uninterrupted():
            shutil.rmtree(directory, ignore_errors=True)
