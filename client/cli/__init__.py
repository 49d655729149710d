"""The `ebla` command. `ebla --help` lists what it can do; every command takes `--json`.

Modules that a command needs are imported when it runs, so that help and mistakes answer at once.
"""

from __future__ import annotations


def main() -> None:
    """The entry point."""
    from ebla.cli.frame.quiet import end_on_sigterm

    end_on_sigterm()

    from ebla.cli.app import app

    app()
