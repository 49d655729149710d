"""Invariant of the level of the cluster (actors/master/cluster/levels.py).

frozen_masters_cure_nothing   while the cluster is frozen, the master asks for no change of members and puts no replica of
                              a former member into quarantine; tablets whose members an operator changes are left out
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ebla.actors.master.errands.messenger import LEFT
from ebla.actors.master.server import ActiveMaster
from ebla.actors.messages.repair import ChangeMembersRequest, DeleteTabletRequest
from ebla.chaos.simulation.network import SimulatedNetwork

BY_OPERATORS = ("add_replica", "remove_replica", "move_replica")


class Named(msgspec.Struct, frozen=True):
    """The tablet of a request; its other fields are left out."""

    tablet: str


@dataclass
class FrozenMasters:
    """`master`: the one that serves, if there is one. `cures`: the calls of cure while the cluster was frozen."""

    master: Callable[[], ActiveMaster | None]
    cures: list[str] = field(default_factory=list)
    _operated: dict[str, None] = field(default_factory=dict)

    def listen(self, network: SimulatedNetwork) -> None:
        for method in BY_OPERATORS:
            network.tap(method, Named, self._note_operator)
        network.tap("change_members", ChangeMembersRequest, self._note)
        network.tap("delete_tablet", DeleteTabletRequest, self._note)

    def check(self) -> None:
        assert not self.cures, f"the cluster was frozen, and its master cured: {self.cures[0]}"

    def _note_operator(self, request: Named) -> None:
        self._operated[request.tablet] = None

    def _note(self, request: ChangeMembersRequest | DeleteTabletRequest) -> None:
        master = self.master()
        if master is None or master.levels.cures() or request.tablet in self._operated:
            return
        if isinstance(request, ChangeMembersRequest) or request.reason == LEFT:
            self.cures.append(f"{request} while it was frozen {master.levels.why_frozen()}")
