"""Commands as an operator runs them: whole processes, beside a process that only connects to Ray and calls one actor."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import ray

from benchmarks.figures import median

COMMANDS = ("status", "nodes", "check")
RUNS = 15
FEED_ROWS, FEEDS = 20_000, 5
EBLA = str(Path(sys.executable).parent / "ebla")
BARE = """
import logging, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
ray.get(ray.get_actor("master/0", namespace="ebla-ebla").ping.remote(b""))
ray.shutdown()
"""


class Cost(NamedTuple):
    """Of one process, in seconds. On a busy machine its CPU time varies less than its time."""

    time_s: float
    cpu_s: float


def medians() -> tuple[Cost, dict[str, Cost]]:
    """The medians: of the bare process, and of each command. They take turns, and the first turn is not counted."""
    processes = {
        "": [sys.executable, "-c", BARE, _address()],
        **{name: [EBLA, name, "--address", _address()] for name in COMMANDS},
    }
    costs: dict[str, list[Cost]] = {name: [] for name in processes}
    for turn in range(1 + RUNS):
        for name, words in processes.items():
            cost = _cost(words, _environment())
            if turn:
                costs[name].append(cost)
    found = {name: Cost(*map(median, zip(*each, strict=True))) for name, each in costs.items()}
    return found.pop(""), found


def each(commands: Iterable[str], runs: int) -> Iterator[tuple[str, list[float]]]:
    """Seconds of each run of each command, whole processes."""
    for command in commands:
        words = [EBLA, *command.split(), "--address", _address()]
        yield command, [_cost(words, _environment()).time_s for _ in range(runs)]


def feeds() -> list[Cost]:
    """Feeds of FEED_ROWS rows of CSV, each into a new table. The first is not counted."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "rows.csv"
        lines = [
            f"{n},name {n},{n / 7:.3f},2024-01-{n % 28 + 1:02d},{n % 3 == 0}\n" for n in range(FEED_ROWS)
        ]
        source.write_text("id,name,score,day,flag\n" + "".join(lines))
        words = ["feed", str(source), "--key", "id", "--address", _address()]
        return [
            _cost([EBLA, *words[:2], f"fed-{turn}", *words[2:]], _environment()) for turn in range(1 + FEEDS)
        ][1:]


def _address() -> str:
    return str(ray.get_runtime_context().gcs_address)


def _environment() -> dict[str, str]:
    """With compiled modules on disk, as installed packages have them."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _cost(words: list[str], environment: dict[str, str]) -> Cost:
    began_s = time.perf_counter()
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words, stderr=errors)
    return Cost(time.perf_counter() - began_s, used.ru_utime + used.ru_stime)
