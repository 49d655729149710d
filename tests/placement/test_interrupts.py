"""Signals that end a process do not stop its cleanup, and its own handler outlasts a library's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from ebla.placement.interrupts import ENDING, ending_at_once, own_handler_of_sigterm, uninterrupted


class Ended(Exception):
    pass


def end(*_: Any) -> None:
    raise Ended


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {each: signal.signal(each, end) for each in ENDING}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("number", ENDING, ids=lambda each: each.name)
def test_cleanup_is_not_stopped_and_what_follows_is(number: signal.Signals) -> None:
    with uninterrupted():
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
    with pytest.raises(Ended):
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("own", [end, signal.SIG_IGN, signal.SIG_DFL])
def test_a_handler_of_the_process_outlasts_one_of_a_library(own: Any) -> None:
    signal.signal(signal.SIGTERM, own)

    def of_library(*_: Any) -> None:
        raise AssertionError

    with own_handler_of_sigterm():
        signal.signal(signal.SIGTERM, of_library)
    assert signal.getsignal(signal.SIGTERM) is (of_library if own is signal.SIG_DFL else own)


def test_ignored_signals_are_noted_once(capfd: pytest.CaptureFixture[str]) -> None:
    with uninterrupted("this is completed"):
        for each in (*ENDING, *ENDING):
            os.kill(os.getpid(), each)
    assert capfd.readouterr().err == "\nthis is completed\n"
    with pytest.raises(Ended):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("number", ENDING, ids=lambda each: each.name)
def test_a_prompt_ends_by_an_exception(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit), ending_at_once():
        os.kill(os.getpid(), number)
    with pytest.raises(Ended):
        os.kill(os.getpid(), number)
