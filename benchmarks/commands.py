"""Commands as an operator runs them: whole processes, beside a process that only connects to Ray and calls one actor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import ray

from benchmarks.figures import median

COMMANDS = ("status", "nodes", "check")
RUNS = 9
BARE = """
import logging, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
ray.get(ray.get_actor("master/0", namespace="ebla-ebla").ping.remote(b""))
ray.shutdown()
"""


def medians() -> tuple[float, dict[str, float]]:
    """The medians in seconds: of the bare process, and of each command. They take turns, and the first turn is not counted."""
    address = str(ray.get_runtime_context().gcs_address)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ebla = str(Path(sys.executable).parent / "ebla")
    processes = {
        "": [sys.executable, "-c", BARE, address],
        **{name: [ebla, name, "--address", address] for name in COMMANDS},
    }
    taken: dict[str, list[float]] = {name: [] for name in processes}
    for turn in range(1 + RUNS):
        for name, words in processes.items():
            began_s = time.perf_counter()
            subprocess.run(words, env=environment, capture_output=True, check=True)
            if turn:
                taken[name].append(time.perf_counter() - began_s)
    found = {name: median(seconds) for name, seconds in taken.items()}
    return found.pop(""), found
