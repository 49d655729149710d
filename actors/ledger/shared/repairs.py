"""The shared state of repairs, and its switches: on and off, the delay, and the start of an audit.

waits, no_store, lost   a ledger that is not whole waits for something that passes, or for another store; or entries of it have no
                        readable copy, and only a store that returns with its data, or an operator, ends that
note      why a marked ledger is not repaired yet; a worker writes it, and every worker keeps to its pause
audits    what the auditor has done; its successor continues from there
"""

from __future__ import annotations

import msgspec

from ebla.actors.coordination.sessions.nodes import Nodes
from ebla.actors.errors import AlreadyPresent, NotFound
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.records import DEADLINE_S, Records, Sessions

WAITS, NO_STORE, LOST = "waits", "no_store", "lost"


class Note(msgspec.Struct, frozen=True, array_like=True):
    """`reason`: one sentence. `since_us`: when the ledger was found so first. `tries`: how often. `pause_s`: no worker tries again
    within this time, which each counts by its own clock from when it saw the note, unless the ledger has another mark than `mark`,
    or a store runs that is not in `running`. `retry_us`: when that is, by the clock of `worker`. `kind`: WAITS, NO_STORE or LOST; of a
    lost one the entries without a readable copy, as ranges (the first ones), and the stores that do not run and should have them."""

    reason: str
    since_us: int
    tries: int
    pause_s: float
    retry_us: int
    mark: int
    running: tuple[str, ...]
    worker: str
    kind: str = WAITS
    entries: tuple[tuple[int, int], ...] = ()
    missing: tuple[str, ...] = ()


class Tally(msgspec.Struct, frozen=True, array_like=True):
    """How many closed `ledgers` a check has found, and how many of these have an entry on fewer stores than the write quorum, than the
    ack quorum, and on none. `unknown`: ledgers with a store that did not answer; it counts as if it had all of its entries."""

    ledgers: int = 0
    below_write: int = 0
    below_ack: int = 0
    without: int = 0
    unknown: int = 0


class Audits(msgspec.Struct, frozen=True, array_like=True):
    """`audit_us`, `check_us`: when the last audit, and the last check of all ledgers, ended; 0: never. `trigger`: the version of the
    last trigger that was followed. `lost`: stores that do not run, and since when, for operators. `ages`: for how many seconds auditors have seen them so, each by
    its own monotonic clock: the delay of a loss is counted by these, and by no wall clock. `copies`: as the last check has counted them."""

    audit_us: int = 0
    check_us: int = 0
    trigger: int = 0
    lost: dict[str, int] = {}
    ages: dict[str, float] = {}
    copies: Tally | None = None


class Delay(msgspec.Struct, frozen=True, array_like=True):
    """`times`: how often it was set; the same value again starts an audit."""

    seconds: float
    times: int = 1


class Trigger(msgspec.Struct, frozen=True, array_like=True):
    times: int


class Repairs:
    """Reads and sets the switches, for roles and operators."""

    def __init__(self, session: Sessions) -> None:
        self.session = session
        self.notes: Records[Note] = Records(session, Note, "note")
        self.audits: Records[Audits] = Records(session, Audits, "record")
        self.delays: Records[Delay] = Records(session, Delay, "delay")
        self.triggers: Records[Trigger] = Records(session, Trigger, "trigger")

    @property
    def nodes(self) -> Nodes:
        return self.session.nodes

    async def enabled(self) -> bool:
        return not await self.nodes.exists(paths.DISABLE, deadline_s=DEADLINE_S)

    async def disable(self) -> None:
        """Stop audits and repairs; a repair under way stops after its batch. Marks are made nevertheless. Raises AlreadyPresent if
        that was done before."""
        session = await self.session.open()
        try:
            await session.create(paths.DISABLE, parents=True, deadline_s=DEADLINE_S)
        except AlreadyPresent:
            raise AlreadyPresent(
                "repairs of ledgers are disabled already; `ebla autorecovery enable` starts them again",
                what=paths.DISABLE,
            ) from None

    async def enable(self) -> None:
        """Start audits and repairs again. Raises NotFound if they were not disabled."""
        session = await self.session.open()
        try:
            await session.delete(paths.DISABLE, deadline_s=DEADLINE_S)
        except NotFound:
            raise NotFound(
                "repairs of ledgers are enabled; nothing was to be done", what=paths.DISABLE
            ) from None

    async def delay_s(self) -> float | None:
        """The delay that an operator has set; None: the auditor's option holds."""
        found = await self.delays.get(paths.DELAY)
        return None if found is None else found.seconds

    async def set_delay(self, seconds: float) -> None:
        """A lost store may return for so long before it is replaced. The timer of a store that is lost now starts again; 0 starts an
        audit at once, as does the present value."""
        await self.delays.put(
            paths.DELAY, lambda found: Delay(seconds, 1 if found is None else found.times + 1)
        )

    async def trigger(self) -> None:
        """Start an audit at once, or as soon as there is an auditor and repairs are enabled."""
        await self.triggers.put(paths.TRIGGER, lambda found: Trigger(1 if found is None else found.times + 1))

    async def marked(self) -> list[int]:
        """The ledgers with a mark, ascending."""
        return await self._numbers(paths.MARKS)

    async def noted(self) -> list[int]:
        """The ledgers with a note, ascending."""
        return await self._numbers(paths.NOTES)

    async def locked(self) -> list[int]:
        """The ledgers with a lock, ascending."""
        return await self._numbers(paths.LOCKS)

    async def _numbers(self, path: str) -> list[int]:
        try:
            found = await self.nodes.children(path, deadline_s=DEADLINE_S)
        except NotFound:
            return []
        return sorted(int(name) for name in found if name.isdecimal())
