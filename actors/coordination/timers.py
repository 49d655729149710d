"""When each session was last heard of, and which of them have been silent for too long. Await-free.

The time is the active master's own. A master that begins, or was started again, has heard nobody yet: every session gets a
whole timeout from then on. While a master itself stands still, what sessions sent waits unread; so of a longer pause
between two looks at the clock only `PAUSE_S_MAX` counts. While it may answer nobody, for want of its lease, it hears nobody
either, and no time counts at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from ebla.actors.coordination.namespace import Session
from ebla.actors.world import Clock

LOOK_S = 0.5  # between two looks at the clock
# Little more. A session of the least timeout, 1 s, speaks every third of it: that and a pause must not make a whole one.
PAUSE_S_MAX = 0.6


class Timers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_at = clock.monotonic()
        self._stood_still_s = 0.0
        self._heard_at: dict[str, float] = {}

    def begin(self, sessions: Iterable[str]) -> None:
        self._looked_at = self._clock.monotonic()
        for session in sessions:
            self.heard(session)

    def heard(self, session: str) -> None:
        self._heard_at[session] = self._now()

    def ended(self, session: str) -> None:
        self._heard_at.pop(session, None)

    def silent_s(self, session: str) -> float:
        return self._now() - self._heard_at[session]

    def look(self, serves: bool) -> None:
        """`serves`: whether signs of life are heard now."""
        now = self._clock.monotonic()
        self._stood_still_s += max(0.0, now - self._looked_at - (PAUSE_S_MAX if serves else 0.0))
        self._looked_at = now

    def overdue(self, session: Session) -> bool:
        return self.silent_s(session.session) * 1000 >= session.timeout_ms

    def _now(self) -> float:
        return self._clock.monotonic() - self._stood_still_s
