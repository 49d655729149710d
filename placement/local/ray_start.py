"""`ray start` for one node of a local cluster, without the commands of Ray's that it never runs: `python -m
ebla.placement.local.ray_start start --block ...`.

Ray's command line imports the commands of its state API, of jobs and of Serve before every command, and goes on without those
that fail to import. They are three quarters of the CPU time that `ray start` takes before it starts a node: 2 to 3 s.
"""

from __future__ import annotations

import sys
from typing import Any

UNUSED = ("ray.util.state.state_cli", "ray.dashboard.modules.job.cli", "ray.serve.scripts")


def main() -> None:
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(UNUSED))  # the import of a module that is None fails
    from ray.scripts import scripts

    start: Any = scripts.main
    start()


if __name__ == "__main__":
    main()
