"""The session of the elected auditor. Its changes are made in the session that has the lock, so that none is made after another
auditor has the lock: the lock ends no earlier than the session, and an expired session changes nothing."""

from __future__ import annotations

from ebla.actors.coordination.sessions.changes import Session
from ebla.actors.coordination.sessions.locks import Lock
from ebla.actors.coordination.sessions.nodes import Nodes
from ebla.storage.errors import EblaError


class NotElected(EblaError):
    """This auditor is not sure to be the elected one. Nothing was changed."""

    retriable = True


class Held:
    """Implements shared.records.Sessions."""

    def __init__(self, session: Session, lock: Lock) -> None:
        self.session = session
        self.lock = lock

    @property
    def nodes(self) -> Nodes:
        return self.session

    @property
    def sure(self) -> bool:
        """Whether no other auditor can have the lock, by this process's clock."""
        return self.lock.held

    async def open(self) -> Session:
        """Raises NotElected."""
        if not self.sure:
            raise NotElected(f"the session {self.session.id} of this auditor may have expired; wait")
        return self.session
