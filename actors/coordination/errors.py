"""Refusals of the coordination namespace, beside NotFound, AlreadyPresent, Throttled and InvalidArgument:

SessionExpired    the session has ended, its ephemeral nodes are gone   start again with another session
VersionMismatch   the node has changed since it was read                read it again, then decide again
NotEmpty          the node has children                                 delete them first
LimitReached      a limit of the namespace is reached                   delete something, or raise the limit
"""

from __future__ import annotations

from ebla.storage.errors import EblaError


class SessionExpired(EblaError):
    """The session has expired or was closed. Its earlier requests may have been carried out; its ephemeral nodes and its locks
    are gone."""

    session: str | None
    possibly_applied = True


class VersionMismatch(EblaError):
    """Nothing was changed: the node at `what` has version `found` (0: there is none), not `wanted`."""

    what: str | None
    wanted: int | None
    found: int | None


class NotEmpty(EblaError):
    """Nothing was changed: the node at `what` has children, and cannot be deleted before them."""

    what: str | None


class LimitReached(EblaError):
    """Nothing was changed. `limit` names the limit."""

    limit: str | None
