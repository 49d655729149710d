"""Faults of the simulated network, and the base of all faults: which are in force, and which had an effect.

One method per kind of chaos/plans.py, as in nemesis.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from ebla.chaos.plans import PARTS, Fault
from ebla.chaos.simulation.deployment import Deployment, address_of
from ebla.chaos.simulation.network import SLOW_PROBABILITY, SLOW_S

SLOW_SHARE = 0.2  # of the messages, under `delay`


class NetworkFaults:
    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.network = deployment.cluster.network
        self.begun: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self._in_force: dict[tuple[str, str], list[float]] = {}
        self._unended: list[tuple[str, Callable[[], float], float]] = []

    def effects_so_far(self) -> Counter[str]:
        """The effects, including those of faults that are still in force (when an invariant has ended the run)."""
        found = self.effects.copy()
        for kind, evidence, before in self._unended:
            found[kind] += evidence() != before
        return found

    @contextmanager
    def _seen(self, fault: Fault, evidence: Callable[[], float]) -> Iterator[None]:
        """Count an effect if the evidence changes while the block lasts: an attempt alone does not count."""
        before = evidence()
        unended = fault.kind, evidence, before
        self._unended.append(unended)
        yield
        self._unended.remove(unended)
        self.effects[fault.kind] += evidence() != before

    @contextmanager
    def _held(
        self, kind: str, target: str, amount: float, apply: Callable[[list[float]], object]
    ) -> Iterator[None]:
        """Keep a fault in force until the block ends. `apply` gets the amounts of all such faults, whenever they change."""
        amounts = self._in_force.setdefault((kind, target), [])
        amounts.append(amount)
        apply(amounts)
        yield
        amounts.remove(amount)
        apply(amounts)

    @contextmanager
    def _switched(
        self, kind: str, target: str, on: Callable[[], object], off: Callable[[], object]
    ) -> Iterator[None]:
        """`_held` for a fault that is in force or not."""
        with self._held(kind, target, 1.0, lambda held: on() if held else off()):
            yield

    async def _isolate(self, fault: Fault) -> None:
        name, network = address_of(fault.where[0]), self.network
        with (
            self._seen(fault, lambda: network.seen[f"isolate {name}"]),
            self._switched("isolate", name, partial(network.isolate, name), partial(network.rejoin, name)),
        ):
            await asyncio.sleep(fault.for_s)

    async def _split(self, fault: Fault) -> None:
        others = [host for host in self.deployment.hosts if host not in fault.where]
        pairs = [(address_of(a), address_of(b)) for a in fault.where for b in others]
        await self._cut_off(fault, pairs, one_way=False)

    async def _cut(self, fault: Fault) -> None:
        a, b = map(address_of, fault.where)
        await self._cut_off(fault, [(a, b)], one_way=fault.kind == "cut_one_way")

    _cut_one_way = _cut

    async def _cut_master(self, fault: Fault) -> None:
        await self._cut_off(fault, [(address_of(fault.where[0]), "master")], one_way=False)

    async def _cut_clients(self, fault: Fault) -> None:
        await self._cut_off(fault, [(address_of(fault.where[0]), "client")], one_way=False)

    async def _cut_off(self, fault: Fault, pairs: list[tuple[str, str]], one_way: bool) -> None:
        ways = pairs if one_way else [way for a, b in pairs for way in ((a, b), (b, a))]
        with ExitStack() as held:
            stopped = [f"cut {a} {b}" for a, b in ways]
            held.enter_context(self._seen(fault, lambda: sum(self.network.seen[way] for way in stopped)))
            for way in ways:
                acts = (partial(act, *way, one_way=True) for act in (self.network.cut, self.network.mend))
                held.enter_context(self._switched("cut", "|".join(way), *acts))
            await asyncio.sleep(fault.for_s)

    async def _everywhere(self, fault: Fault) -> None:
        with (
            self._seen(fault, lambda: self.network.seen[fault.kind]),
            self._held(fault.kind, "everywhere", fault.amount, partial(self._set_share, fault.kind)),
        ):
            await asyncio.sleep(fault.for_s)

    _lose = _repeat = _delay = _lose_parts = _repeat_parts = _delay_parts = _everywhere

    def _set_share(self, kind: str, amounts: list[float]) -> None:
        if kind == "lose":
            self.network.drop_probability = max(amounts, default=0.0)
        elif kind == "repeat":
            self.network.repeat_probability = max(amounts, default=0.0)
        elif kind in PARTS:
            self.network.parts.pop(kind, None)
            self.network.parts.update({kind: max(amounts)} if amounts else {})
        else:
            self.network.slow_probability = SLOW_SHARE if amounts else SLOW_PROBABILITY
            self.network.slow_s = max(amounts, default=SLOW_S)
