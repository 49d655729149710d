"""The one writer of the catalog: decide, make durable, apply, answer; one change after the other.

A change is two functions without await. `decide` reads the committed catalog and returns edits (or raises
the typed error that the caller gets); `conclude` runs right after they were applied, before any other
task, and returns the answer. Between the two is the only wait, for the edit log. Meanwhile no other change
is made to the catalog, and every reader still sees the old state. A cancelled caller does not stop a change
halfway: the scribe completes it.

After a failure of the journal it is unknown whether the edits are durable. The active term then ends, and
the next one begins with the state of the journal. A full disk of the journal's only node is no such
failure: the edits were not written, and the change is refused. A checkpoint that does not fit is made
later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ebla.actors.errors import OutcomeUnknown, Throttled, Unavailable
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.checkpoint import Checkpoints
from ebla.actors.master.catalog.edits import Edit, MasterBegan
from ebla.actors.master.catalog.lineage import ACCEPTED
from ebla.actors.master.catalog.quorum_edit_log import QuorumEditLog
from ebla.actors.master.options import MasterOptions
from ebla.actors.world import World, settle
from ebla.storage.errors import DiskFull, EblaError

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_AFTER_S = 0.1


@dataclass(eq=False)
class _Change:
    name: str
    decide: Callable[[], Sequence[Edit]]
    conclude: Callable[[], Any]
    answer: asyncio.Future[Any]
    apart: bool


@dataclass(eq=False)
class Scribe:
    _world: World
    _log: QuorumEditLog
    _checkpoints: Checkpoints
    _catalog: Catalog
    _options: MasterOptions
    checkpointed: int = 0

    def __post_init__(self) -> None:
        self._waiting: deque[_Change] = deque()
        self._wake = asyncio.Event()
        self._current: _Change | None = None
        self._refuses: Callable[[str], EblaError] | None = None  # the error of new changes, by their name
        self._tried = 0  # the transaction of the last checkpoint that was tried

    async def begin(self, start: str, accepted: tuple[str, ...] = ()) -> None:
        """Make durable that a master serves from this catalog; before, it sends no answers and no requests.

        `start`: the token of the master's start; `accepted`: see MasterBegan.
        """
        edit = MasterBegan(self._catalog.lineage.begun + (ACCEPTED if accepted else 1), start, accepted)
        await self._world.faults.here("master.begin.before_edit")
        await self._log.append([edit])
        await self._world.faults.here("master.begin.after_edit")
        self._catalog.apply([edit])

    async def change(
        self,
        name: str,
        decide: Callable[[], Sequence[Edit]],
        conclude: Callable[[], T],
        *,
        next_one: bool = False,
        apart: bool = False,
    ) -> T:
        """Queue a change and return its answer. `name`: of the change, in fault points and messages.

        `next_one`: carry it out before all changes that wait; their limit does not apply to it. `apart`: each
        of its edits is a transaction of its own, so that none is too large.
        """
        if self._refuses is not None:
            raise self._refuses(name)
        if len(self._waiting) >= self._options.changes_waiting_max and not next_one:
            raise Throttled(
                f"{len(self._waiting)} changes of the catalog are waiting",
                limit="changes_waiting_max",
                retry_after_s=RETRY_AFTER_S,
            )
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        made = _Change(name, decide, conclude, answer, apart)
        self._waiting.appendleft(made) if next_one else self._waiting.append(made)
        self._wake.set()
        return await answer

    async def run(self) -> None:
        """Carry out changes in the order of the queue, until cancelled or failed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                change = self._current = self._waiting.popleft()
                try:
                    await self._carry_out(change)
                    await self._checkpoint()
                except Exception as error:
                    self.close()
                    self._world.fail(error)
                    raise
                self._current = None

    async def _carry_out(self, change: _Change) -> None:
        try:
            edits = change.decide()
        except EblaError as error:
            settle(change.answer, error)
            return
        for together in [[edit] for edit in edits] if change.apart else [edits] if edits else []:
            await self._world.faults.here(f"master.{change.name}.before_edit")
            try:
                await self._log.append(together)
            except DiskFull as error:
                settle(change.answer, error)
                return
            await self._world.faults.here(f"master.{change.name}.after_edit")
            self._catalog.apply(together)
        settle(change.answer, change.conclude())

    async def _checkpoint(self) -> None:
        """Make a checkpoint if one is due.

        Checkpoints are rare enough to cost little per edit, for any size of the catalog, also while the
        disk is full.
        """
        since = self._log.last_txid - max(self.checkpointed, self._tried)
        if since < max(self._options.checkpoint_edits, len(self._catalog)):
            return
        self._tried = self._log.last_txid
        try:
            await self._save(self._tried)
        except DiskFull as error:
            log.warning("%s made no checkpoint and continues without it: %s", self._world.address, error)

    async def _save(self, txid: int) -> None:
        await self._world.faults.here("master.checkpoint.before_save")
        await self._checkpoints.save(txid, self._catalog.image(), self._log.mark())
        self.checkpointed = txid

    @property
    def waiting(self) -> int:
        """The number of changes that were not begun yet."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return self._current is None and not self._waiting

    def retire(self) -> None:
        """Begin no more changes: callers that wait get an error and ask the next master."""
        self._refuse_all(
            lambda name: Throttled(
                f"{self._world.address} hands over and did not begin {name}",
                limit="handing_over",
                retry_after_s=RETRY_AFTER_S,
            )
        )

    def close(self) -> None:
        """Carry out no more changes. The one under way may be, or become, durable: its outcome is unknown."""
        address = self._world.address
        if self._current is not None:
            unknown = f"{address} failed while it made {self._current.name} durable"
            settle(self._current.answer, OutcomeUnknown(unknown, address=address))
        self._refuse_all(lambda name: Unavailable(f"{address} failed before it began {name}; ask again"))

    def _refuse_all(self, refuses: Callable[[str], EblaError]) -> None:
        """Refuse the changes that wait, and all later ones."""
        self._refuses = refuses
        while self._waiting:
            waiting = self._waiting.popleft()
            settle(waiting.answer, refuses(waiting.name))
