"""The lock of a ledger: an ephemeral node, which one worker makes. The worker's changes of the ledger's metadata are made only
while the node exists (`check`), so that a worker that lost its lock without knowing can only waste work."""

from __future__ import annotations

from dataclasses import dataclass

from ebla.actors.coordination.messages import Check
from ebla.actors.coordination.sessions.changes import Session
from ebla.actors.errors import AlreadyPresent
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.records import DEADLINE_S, LastingSession
from ebla.storage.errors import EblaError


@dataclass(frozen=True)
class LedgerLock:
    ledger: int
    version: int
    session: Session

    @property
    def sure(self) -> bool:
        """Whether no other worker can have the lock, by this process's clock."""
        return self.session.is_sure

    @property
    def check(self) -> Check:
        return Check(paths.of_lock(self.ledger), self.version)

    async def release(self) -> None:
        """If no master answers, the lock ends with the session, which is closed for that."""
        try:
            await self.session.delete(paths.of_lock(self.ledger), version=self.version, deadline_s=DEADLINE_S)
        except EblaError:
            await self.session.close()


async def take(sessions: LastingSession, ledger: int, holder: str) -> LedgerLock | None:
    """None if another worker has it. If it is not certain whether the lock was made, it ends with the session, which is closed for
    that."""
    session = await sessions.open()
    try:
        made = await session.create(
            paths.of_lock(ledger), holder.encode(), ephemeral=True, parents=True, deadline_s=DEADLINE_S
        )
    except AlreadyPresent:
        return None
    except EblaError:
        await session.close()
        raise
    return LedgerLock(ledger, made.version, session)
