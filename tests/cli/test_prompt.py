"""A confirmation on a terminal ends with the signals that end a command."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from ebla.cli.frame import quiet
from ebla.cli.frame.ui import Common, Ui

async def work():
    Ui(Common()).confirm("Delete?", False)

quiet.end_on_sigterm()
try:
    if sys.argv[1] == "connected":  # a command with a connection runs in asyncio
        quiet.run(work())
    else:
        Ui(Common()).confirm("Delete?", False)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("when", ["at once", "connected"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_confirmation_ends_at_the_first_signal(when: str, number: int, status: int) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, when]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        try:
            shown = b""
            while b"[y/N]" not in shown:
                shown += os.read(ours, 1024)
            process.send_signal(number)
            assert process.wait(timeout=60) == status, shown
        finally:
            process.kill()
            os.close(ours)
            os.close(theirs)
