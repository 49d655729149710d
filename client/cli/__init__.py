"""The `ebla` command. `ebla --help` lists its commands; every command takes `--json`.

A command imports the modules that it needs when it runs, so that help and usage errors are printed at once.
"""

from __future__ import annotations


def main() -> None:
    import signal

    from ebla.cli.frame.quiet import end_on_sigterm, leave_ray

    end_on_sigterm()

    from ebla.cli.app import app

    try:
        app()
    finally:
        # A second Ctrl-C ends the process at once, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        leave_ray()
