"""Latencies and how they are told: the last so many samples, as percentiles."""

from __future__ import annotations

from collections import deque

from ebla.actors.journal.messages import Percentiles

SAMPLES_MAX = 2048


class Latencies:
    def __init__(self) -> None:
        self.count = 0
        self._samples: deque[float] = deque(maxlen=SAMPLES_MAX)

    def add(self, seconds: float) -> None:
        self.count += 1
        self._samples.append(seconds)

    def percentiles(self) -> Percentiles:
        """Nearest rank."""
        ordered = sorted(self._samples)

        def at(percent: int) -> float:
            if not ordered:
                return 0.0
            return ordered[-(-percent * len(ordered) // 100) - 1] * 1000

        return Percentiles(self.count, *map(at, (50, 75, 90, 95, 99)))
