"""The counted time of a deployment, by which logs delete old records: no wall clock can make a record old.

one node    has two times: the counted time is at least `least_us` now, and at most `most_us`
advanced    by the elected auditor, by what its monotonic clock measured since it read the node's present version. So no time is
            counted twice, also if two count, or an answer is lost; time without an auditor is not counted
bounded     by `most_us`: a pause counts little
ages        are from the most that it may have been then to the least that it is now: never more than what has passed. An error of
            any of these keeps records for longer

The node is made with the first ledger whose age matters. A deployment without one counts nothing.
"""

from __future__ import annotations

import msgspec

from ebla.actors.coordination.messages import Set
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.records import DEADLINE_S, Records, Sessions
from ebla.actors.world import CallerWorld

US = 1_000_000


class Counted(msgspec.Struct, frozen=True, array_like=True):
    least_us: int = 0
    most_us: int = 0


def advanced(found: Counted, passed_s: float, step_s: float) -> Counted:
    """The counted time when `passed_s` have passed since it was read, and the next step is to be `step_s`."""
    least_us = min(found.least_us + int(passed_s * US), found.most_us)
    return Counted(least_us, least_us + int(2 * step_s * US))


class CountedTime:
    def __init__(self, session: Sessions) -> None:
        self._session = session
        self._records: Records[Counted] = Records(session, Counted, "counted time")

    async def least_s(self) -> float:
        """What it is at least now."""
        found = await self._records.get(paths.COUNTED) or Counted()
        return found.least_us / US

    async def most_s(self) -> int:
        """What it is at most now, in whole seconds. From the first call on it is counted."""
        found = await self._records.get(paths.COUNTED)
        if found is None:
            found = await self._records.put(paths.COUNTED, lambda there: there or Counted())
        return -(-found.most_us // US)

    async def advance(self, world: CallerWorld, step_s: float) -> None:
        """Count one step, which is slept. Raises VersionMismatch if another one has counted meanwhile."""
        found = await self._records.find(paths.COUNTED)
        read_at = world.now()
        await world.clock.sleep(step_s)
        if found is None:
            return
        counted, version = found
        data = msgspec.msgpack.encode(advanced(counted, world.now() - read_at, step_s))
        session = await self._session.open()
        await session.change(Set(paths.COUNTED, data, version), deadline_s=DEADLINE_S)
