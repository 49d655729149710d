"""Messages about a command line that cannot be carried out."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import termios

import pytest

from ebla.cli.app import app
from tests.cli.stage import Cli


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("table scan t --limit x", "Invalid value for '--limit' / '-l': write a whole number"),
        ("check --wait soon", "Invalid value for '--wait': write a number"),
        ("table create t --replicas 0", "Invalid value for '--replicas' / '-r': write 1 or more"),
        ("feed f t --on-error stop", "Invalid value for '--on-error': 'stop' is not one of 'fail', 'skip'."),
    ],
)
def test_a_value_that_does_not_fit_is_refused_in_plain_words(ebla: Cli, words: str, message: str) -> None:
    assert (ebla(words).status, ebla(words).err.splitlines()[0]) == (2, f"ebla: {message}")
    assert ebla(f"{words} --json").json["error"]["message"] == message


def test_a_name_that_is_no_text_is_refused_in_plain_words(ebla: Cli) -> None:
    for command in ("nodes drain", "nodes decommission", "nodes forget", "log describe", "coord get"):
        ebla(command, "/\udcff" if "coord" in command else "\udcff").require(2, "is not valid Unicode")


def test_an_option_without_its_value_names_the_help_of_its_command(ebla: Cli) -> None:
    refused = ebla("up --slot")
    refused.require(2, "Option '--slot' requires an argument.")
    assert "`ebla up --help` shows its options" in refused.err
    assert ebla("up -h").out == ebla("up --help").out != ""


def test_an_error_breaks_between_words_on_a_terminal_and_nowhere_else(
    ebla: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["table", "create", "t", "-c", "k:int65", "-k", "k"]
    whole = ebla(*words)
    assert (whole.status, whole.err.count("\n")) == (2, 1)
    reading, writing = os.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with os.fdopen(writing, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        with pytest.raises(SystemExit):
            app(words)
        terminal.flush()
        shown = os.read(reading, 10_000).decode()
    os.close(reading)
    assert " ".join(shown.split()) == whole.message
    assert len(shown.splitlines()) > 1 and all(len(line) <= 40 for line in shown.splitlines()), shown


@pytest.mark.parametrize(
    ("words", "meant"),
    [("scan t", "`ebla table scan`"), ("table show t", "`ebla tablet show` or `ebla ledger show`")],
)
def test_an_unknown_command_is_named_with_the_group_that_has_it(ebla: Cli, words: str, meant: str) -> None:
    unknown = ebla(words)
    assert (unknown.status, f"did you mean {meant}?" in unknown.err) == (2, True)
    assert "did you mean" not in ebla("frobnicate").err
