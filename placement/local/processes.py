"""Finds the processes of a local cluster, and ends exactly those and no others.

A process belongs to a node if it has the node's mark in its environment (children inherit it:
raylets, agents, workers, jobs), if it was recorded with its start time, or if it descends from such
a process. A pid alone proves nothing: the system may have given it to another process since.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

import msgspec
import psutil

MARK = "EBLA_LOCAL_NODE"
CREATED_SLACK_S = 1.0  # the start time is derived from the boot time, which clock corrections move a little
ROUNDS_MAX = 8  # a process that is ended may be starting a child at that moment


class ProcessRecord(msgspec.Struct, frozen=True):
    pid: int
    created: float
    name: str = ""


def mark_of(cluster: str, number: int) -> str:
    return f"{cluster}:{number}"


def record(process: psutil.Process) -> ProcessRecord:
    return ProcessRecord(process.pid, process.create_time(), process.name())


def record_all(processes: Iterable[psutil.Process]) -> tuple[ProcessRecord, ...]:
    """Records of the processes that still run: some helpers of a starting node run for a moment only."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(record(process))
    return tuple(found)


def find(recorded: ProcessRecord) -> psutil.Process | None:
    """The recorded process, if it still runs. A zombie has ended; only its parent has not noticed yet."""
    try:
        process = psutil.Process(recorded.pid)
        if abs(process.create_time() - recorded.created) > CREATED_SLACK_S:
            return None
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.NoSuchProcess:
        return None


def belonging(marks: Sequence[str], recorded: Iterable[ProcessRecord] = ()) -> list[psutil.Process]:
    """Every running process that belongs to one of the marks or records, by pid. Never this process
    itself."""
    wanted = frozenset(marks)
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) in wanted and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process
    for entry in recorded:
        root = find(entry)
        if root is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.update({child.pid: child for child in root.children(recursive=True)})
            found[root.pid] = root
    found.pop(os.getpid(), None)
    return [found[pid] for pid in sorted(found)]


def signal_all(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def wait_gone(marks: Sequence[str], recorded: Sequence[ProcessRecord], timeout_s: float) -> bool:
    """Wait for the cluster's processes to end by themselves. Returns whether all have ended within
    the time."""
    _, running = psutil.wait_procs(belonging(marks, recorded), timeout=timeout_s)
    return not running and not belonging(marks, recorded)


def kill(
    marks: Sequence[str], recorded: Sequence[ProcessRecord] = (), wait_s: float = 5.0
) -> list[ProcessRecord]:
    """SIGKILL the cluster's processes, again until no new one appears. Returns the survivors."""
    for _ in range(ROUNDS_MAX):
        running = belonging(marks, recorded)
        if not running:
            return []
        for process in running:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(running, timeout=wait_s / ROUNDS_MAX)
    return list(record_all(belonging(marks, recorded)))
