"""`ray start` for one node of a local cluster: `python -m ebla.placement.local.ray_start start --block ...`.

Before every command Ray imports those of its state API, of jobs and of Serve, and goes on without those that fail to import. Here
they fail at once, which saves 0.7 s of CPU for each node, and 2.4 s if Serve is installed.
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
