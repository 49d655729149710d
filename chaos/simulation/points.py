"""Fault points and marks of simulated nodes: passes are counted, and an armed point crashes its node."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Points:
    """Shared by all nodes of a run. `fired` and `reached` count passes of points and marks."""

    fired: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    crashed: Counter[str] = field(default_factory=Counter)
    _armed: dict[tuple[str, str], Callable[[], None]] = field(default_factory=dict)

    def arm(self, address: str, point: str, act: Callable[[], None]) -> None:
        """Call `act` when the node at `address` next passes `point`."""
        self._armed[address, point] = act

    def disarm(self, address: str, point: str) -> None:
        self._armed.pop((address, point), None)

    def disarm_all(self) -> None:
        self._armed.clear()

    def of(self, address: str) -> NodePoints:
        return NodePoints(self, address)

    def pass_by(self, address: str, point: str) -> bool:
        """Whether the node was crashed here."""
        self.fired[point] += 1
        act = self._armed.pop((address, point), None) if self._armed else None
        if act is None:
            return False
        self.crashed[point] += 1
        act()
        return True


@dataclass(frozen=True)
class NodePoints:
    """The `faults` of one node's World."""

    points: Points
    address: str

    async def here(self, point: str) -> None:
        if self.points.pass_by(self.address, point):
            await asyncio.sleep(0)  # never returns: the node is dead

    def reached(self, mark: str) -> None:
        self.points.reached[mark] += 1
