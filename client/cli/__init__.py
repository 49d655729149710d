"""The `ebla` command. `ebla --help` lists what it can do; every command takes `--json`.

Modules that a command needs are imported when it runs, so that help and mistakes answer at once.
"""

from __future__ import annotations


def main() -> None:
    """The entry point."""
    import signal
    import sys
    from types import FrameType

    def terminated(number: int, frame: FrameType | None) -> None:
        """`ray job stop` and supervisors send SIGTERM: clean up on the way out, as with Ctrl-C."""
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, terminated)

    from ebla.cli.app import app

    app()
