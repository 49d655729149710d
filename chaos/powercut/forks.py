"""Run a case in a forked child with a directory of its own: a SIGBUS, for instance, ends only the child.

Only a process without threads of its own and without open environments may fork (cases.py).
"""

from __future__ import annotations

import faulthandler
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

LATE = "it does not end"
_READ_BYTES = 1 << 16
_FRAME = re.compile(r'File "(.+)", line \d+ in (\w+)')

Case = Callable[[Path, BinaryIO], object]


def run(case: Case, scratch: Path, *, timeout_s: float, cpu_s: int) -> tuple[bytes, str]:
    """Run `case` with an empty directory. Returns its output, and how the child ended if it failed. A child that loops is ended
    after `cpu_s` seconds of CPU time, on a machine of any speed; one that waits, after `timeout_s`."""
    base = Path(tempfile.mkdtemp(dir=scratch))
    errors = base.with_suffix(".stderr")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        _run_child(case, base, writing, errors)
    os.close(writing)
    try:
        answer, late = _read(reading, time.monotonic() + timeout_s)
        if late:
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return answer, ""
        if late or -status in (signal.SIGXCPU, signal.SIGKILL):  # the latter beyond the hard limit
            return answer, f"{LATE}{_place(errors)}"
        return answer, f"{_ending(status)}: {_last_line(errors)}"
    finally:
        os.close(reading)
        errors.unlink(missing_ok=True)
        shutil.rmtree(base, ignore_errors=True)


def _run_child(case: Case, base: Path, writing: int, errors: Path) -> None:
    """Run the case in the child. Never returns."""
    status = 1
    try:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
        faulthandler.register(signal.SIGXCPU, all_threads=False, chain=True)
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            case(base, cast(BinaryIO, pipe))
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _read(reading: int, until: float) -> tuple[bytes, bool]:
    found: list[bytes] = []
    while (left_s := until - time.monotonic()) > 0:
        if select.select([reading], [], [], left_s)[0]:
            data = os.read(reading, _READ_BYTES)
            if not data:
                return b"".join(found), False
            found.append(data)
    return b"".join(found), True


def _ending(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def _place(errors: Path) -> str:
    """The last place of a child that looped."""
    found = _FRAME.search(errors.read_text(errors="replace")) if errors.exists() else None
    return f": {found[2]} in {Path(found[1]).name}" if found else ""


def _last_line(errors: Path) -> str:
    return errors.read_text(errors="replace").strip().rpartition("\n")[2] if errors.exists() else ""
