"""The promises of journal nodes to writers. After a node has promised an epoch, or answered a request of it, the node carries
out no request of a lower epoch and promises that epoch to no other writer, also after restarts.

A node whose directory was lost, or is an old copy, is another node here; rejoin.py says when it counts again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Protocol

from ebla.actors.journal import messages as m
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.options import JournalNodeOptions
from ebla.actors.master.leadership.group import Master
from ebla.actors.master.options import GroupOptions
from ebla.actors.world import World, rpc


class Stamped(Protocol):
    @property
    def stamp(self) -> m.Stamp: ...


@dataclass
class Promises:
    """By uuid of a node and journal: the highest epoch that it answered with, and every epoch that it promised. `broken`
    describes a broken promise."""

    epochs: dict[tuple[str, str], int] = field(default_factory=dict)
    given: dict[tuple[str, str], dict[int, None]] = field(default_factory=dict)
    broken: str = ""

    def of(self, uuid: str, journal: str) -> int:
        return self.epochs.get((uuid, journal), 0)

    def note(self, uuid: str, journal: str, epoch: int) -> None:
        self.epochs[uuid, journal] = max(epoch, self.of(uuid, journal))

    def give(self, uuid: str, journal: str, epoch: int) -> bool:
        """Note that the epoch was promised. False if it was promised before."""
        given = self.given.setdefault((uuid, journal), {})
        if epoch in given:
            return False
        given[epoch] = None
        return True

    def break_by(self, node: str, request: object, epoch: int, promised: int) -> None:
        if not self.broken:
            what = f"{type(request).__name__} of epoch {epoch}"
            self.broken = f"{node} carried out {what} after it had promised epoch {promised}"


class WatchedNode(JournalNode):
    def __init__(
        self,
        world: World,
        options: JournalNodeOptions,
        promises: Promises,
        is_copy: Callable[[str], bool],
        *,
        in_master: bool = False,
    ) -> None:
        super().__init__(world, options, in_master=in_master)
        self.promises = promises
        self.is_copy = is_copy

    @rpc
    async def new_epoch(self, request: m.NewEpochRequest) -> m.NewEpochReply:
        """A request for an epoch that is promised already must be refused, also to the writer that has it."""
        name = request.journal.name
        promised = self.promises.of(self.instance.uuid, name)
        reply = await super().new_epoch(request)
        self._witnesses(name, request)
        uuid = self.instance.uuid
        if not self.is_copy(uuid):
            mine = self.promises.give(uuid, name, request.epoch)
            if not mine or request.epoch <= promised:
                self.promises.break_by(
                    self.world.address, request, request.epoch, max(promised, request.epoch)
                )
        self._note(name, request.epoch)
        return reply

    def _witnesses(self, journal: str, request: object) -> None:
        """A node that joins or rejoins promises nothing and takes part in no recovery."""
        if self.journals[journal].view.state.token and not self.promises.broken:
            what = type(request).__name__
            self.promises.broken = f"{self.world.address} answered {what} before it counts as a node"

    @rpc
    async def manifest(self, request: m.ManifestRequest) -> m.Manifest:
        reply = await super().manifest(request)
        self._witnesses(request.journal.name, request)
        return reply

    @rpc
    async def journal_state(self, request: m.JournalId) -> m.JournalStateReply:
        reply = await super().journal_state(request)
        self._witnesses(request.name, request)
        return reply

    def _note(self, journal: str, epoch: int) -> None:
        if not self.is_copy(self.instance.uuid):
            self.promises.note(self.instance.uuid, journal, epoch)


def _watched(verb: str) -> Any:
    """The node's verb, compared with the promise at the arrival of the request: a new one may be made while it is carried out."""
    carry_out = getattr(JournalNode, verb)

    @wraps(carry_out)
    async def watched(self: WatchedNode, request: Stamped) -> Any:
        name = request.stamp.journal.name
        promised = self.promises.of(self.instance.uuid, name)
        reply = await carry_out(self, request)
        if isinstance(request, m.PrepareRequest | m.AcceptRequest):
            self._witnesses(name, request)
        if request.stamp.epoch < promised and not self.is_copy(self.instance.uuid):
            self.promises.break_by(self.world.address, request, request.stamp.epoch, promised)
        self._note(name, request.stamp.epoch)
        return reply

    return watched


STAMPED = (
    "prepare_recovery",
    "accept_recovery",
    "start_segment",
    "journal",
    "finalize",
    "journal_heartbeat",
    "purge",
)
for each in STAMPED:
    setattr(WatchedNode, each, _watched(each))


class WatchedMaster(Master):
    """Its journal node is watched, if it has one."""

    def __init__(
        self, world: World, options: GroupOptions, promises: Promises, is_copy: Callable[[str], bool]
    ) -> None:
        self._promises = promises
        self._is_copy = is_copy
        super().__init__(world, options)

    def make_node(self, world: World, options: JournalNodeOptions) -> JournalNode:
        return WatchedNode(world, options, self._promises, self._is_copy, in_master=self._is_single)
