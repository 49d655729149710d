"""Refusals of the coordination namespace, beside NotFound, AlreadyPresent, Throttled and InvalidArgument:

SessionExpired    the session has ended, its ephemeral nodes are gone   begin anew, with another session
VersionMismatch   the node is not as it was read                        read it again, then decide again
NotEmpty          the node has children                                 delete them first
LimitReached      a limit of the namespace is reached                   delete something, or raise the limit
"""

from __future__ import annotations

from ebla.storage.errors import EblaError


class SessionExpired(EblaError):
    """The session has expired or was closed. What it asked before may have been done; its ephemeral nodes are gone, its locks
    are somebody else's."""

    fields = ("session",)
    session: str | None
    possibly_applied = True


class VersionMismatch(EblaError):
    """Nothing was changed: the node at `what` has version `found` (0: there is none), not `wanted`."""

    fields = ("what", "wanted", "found")
    what: str | None
    wanted: int | None
    found: int | None


class NotEmpty(EblaError):
    fields = ("what",)
    what: str | None


class LimitReached(EblaError):
    """Nothing was changed. `limit` names the limit."""

    fields = ("limit",)
    limit: str | None
