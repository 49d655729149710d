"""The last message of each session, and the sessions that have been silent for too long. Await-free.

The time is that of the active master. When a master takes over or starts, every session gets a whole new timeout. While
a master is paused, it does not receive messages; so of a longer pause between two ticks only `PAUSE_S_MAX` counts. While
a master has no lease, it answers no session, and no time counts at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ebla.actors.coordination.namespace import Session
from ebla.actors.world import Clock

TICK_S = 0.5
# Little more than a tick. A session with the least timeout of 1 s sends a message every third of a second: the sum of
# that and a pause must be less than the timeout.
PAUSE_S_MAX = 0.6


class Timers:
    def __init__(self, clock: Clock, serves: Callable[[], bool]) -> None:
        """`serves`: whether the master answers sessions now."""
        self._clock = clock
        self._serves = serves
        self._ticked_at = clock.monotonic()
        self._paused_s = 0.0
        self._renewed_at: dict[str, float] = {}

    def begin(self, sessions: Iterable[str]) -> None:
        self._ticked_at = self._clock.monotonic()
        for session in sessions:
            self.renew(session)

    def renew(self, session: str) -> None:
        self.tick()  # the message may come after a pause, before its tick
        self._renewed_at[session] = self._now()

    def ended(self, session: str) -> None:
        self._renewed_at.pop(session, None)

    def silent_s(self, session: str) -> float:
        return self._now() - self._renewed_at[session]

    def tick(self) -> None:
        now = self._clock.monotonic()
        self._paused_s += max(0.0, now - self._ticked_at - (PAUSE_S_MAX if self._serves() else 0.0))
        self._ticked_at = now

    def overdue(self, session: Session) -> bool:
        return self.silent_s(session.session) * 1000 >= session.timeout_ms

    def _now(self) -> float:
        return self._clock.monotonic() - self._paused_s
