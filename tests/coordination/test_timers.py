"""The silence of sessions by the clock of a master that pauses."""

from __future__ import annotations

import pytest

from ebla.actors.coordination.namespace import Session
from ebla.actors.coordination.timers import TICK_S, Timers

FIRST, SECOND = (Session(name, name, 1000, "") for name in ("first", "second"))


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timers(clock: Clock) -> Timers:
    made = Timers(clock, lambda: True)  # type: ignore[arg-type]
    made.begin(["first", "second"])
    return made


def test_a_pause_before_the_last_message_of_a_session_does_not_lengthen_its_timeout(
    clock: Clock, timers: Timers
) -> None:
    clock.now_s += 2.0
    timers.renew("first")
    timers.tick()
    ticks = 0
    while not timers.overdue(FIRST):
        clock.now_s += TICK_S
        timers.tick()
        ticks += 1
    assert ticks == 1.0 / TICK_S


@pytest.mark.parametrize("ticked", [True, False])
@pytest.mark.parametrize("paused_s", [0.3, 0.6, 1.0, 8.0])
def test_messages_that_wait_while_the_master_pauses_come_in_time_in_any_order(
    clock: Clock, timers: Timers, ticked: bool, paused_s: float
) -> None:
    """The second session's last message was a third of its timeout before the pause."""
    for _ in range(3):
        clock.now_s += 1 / 3
        timers.renew("first")
        if ticked:
            timers.tick()
        clock.now_s += paused_s
        timers.renew("first")
        timers.tick()
        assert not timers.overdue(FIRST) and not timers.overdue(SECOND)
        timers.renew("second")
