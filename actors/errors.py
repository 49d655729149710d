"""Errors that travel between roles, and how any error crosses the wire.

Two of them are what a caller sees instead of an answer. The first never travels; a role answers with the second where it
cannot tell itself:

    NotDelivered     the request surely did not run          send it again, anywhere
    OutcomeUnknown   it may have run, now or later           send it again with the same request id

The others are answers:

    NotLeader        this replica does not lead the tablet   follow `leader`, or ask the master
    NotActive        this master is not the active one       ask `active`, or another master
    TabletNotFound   this server has no such replica         ask the master again
    NotRunning       the role or replica is not ready yet    back off, then send it again
    ReplicaFailed    this replica's data failed a check      another replica must serve
    WrongServer      the server at this address is another   forget the old one
    OldCopy          who asks, or is asked, runs on an old   it ends; its directory is set aside
                     copy of its directory
    Throttled        a stated limit is full                  back off `retry_after_s`, then send it again
    StaleRequest     the answer to this request id is gone   its outcome cannot be told any more
    RequestReused    one request id, two different bodies    a defect of the caller; use fresh ids
    SchemaMismatch   the tablet has another schema version   fetch the table again, then send it again
    NotFound / AlreadyPresent                                 the named thing, or the listed rows
    TableDropped     a NotFound: the table is kept           recall it
    Unavailable      no quorum, no master, no host           wait, or look at `ebla check`
    ConfigurationMoved  the tablet's members are others by now   look again, then decide
    AlreadyInProgress   a copy, or a deletion, is under way    wait for its end
    IllegalState     the replica's state is another          look again
    OldTerm          who asks does not lead any more         it finds out by itself
    TabletRemoved    this server deleted the tablet for good  nothing; its table was dropped
    CopyExpired      the copy session has ended              begin a new one
    Internal         a defect                                report it; see the role's log
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec

from ebla.storage import errors as storage_errors
from ebla.storage.errors import EblaError


class NetworkError(EblaError):
    """The caller has no answer."""

    fields = ("address",)
    address: str | None
    retriable = True


class NotDelivered(NetworkError):
    """The request surely did not run."""


class OutcomeUnknown(NetworkError):
    """The request may have run, may be running, or may never run."""

    possibly_applied = True


class NotLeader(EblaError):
    """`leader` is the address of the server that leads, if known; `term` the term this replica knows."""

    fields = ("tablet", "leader", "term")
    tablet: str | None
    leader: str | None
    term: int | None
    retriable = True


class NotActive(EblaError):
    """This master is a standby, or not sure that it is the active one. `active` is the address of the one that is, as far
    as this one knows."""

    fields = ("active",)
    active: str | None
    retriable = True


class TabletNotFound(EblaError):
    fields = ("tablet",)
    tablet: str | None
    retriable = True


class NotRunning(EblaError):
    fields = ("tablet", "state")
    tablet: str | None
    state: str | None
    retriable = True


class ReplicaFailed(EblaError):
    fields = ("tablet", "reason")
    tablet: str | None
    reason: str | None
    retriable = True


class WrongServer(EblaError):
    fields = ("wanted", "found")
    wanted: str | None
    found: str | None


class Throttled(EblaError):
    """A limit is full: `limit` names it, `retry_after_s` is the least time to wait. Nothing was changed."""

    fields = ("limit", "retry_after_s")
    limit: str | None
    retry_after_s: float | None
    retriable = True


class ConfigurationMoved(EblaError):
    """Compare-and-set failed: `found` is the index of the committed configuration. Nothing was changed."""

    fields = ("tablet", "found")
    tablet: str | None
    found: int | None


class AlreadyInProgress(EblaError):
    """A copy, a deletion or a change of members of this tablet is under way here; nothing was changed."""

    fields = ("tablet",)
    tablet: str | None
    retriable = True


class IllegalState(EblaError):
    """The replica's `state` is not the one that the request stands on. Nothing was changed."""

    fields = ("tablet", "state")
    tablet: str | None
    state: str | None


class OldTerm(EblaError):
    """A newer `term` than the request's is known here. Nothing was changed."""

    fields = ("tablet", "term")
    tablet: str | None
    term: int | None


class TabletRemoved(EblaError):
    """The tablet was deleted for good on this server; it is not made anew."""

    fields = ("tablet",)
    tablet: str | None


class CopyExpired(EblaError):
    """The copy session has expired, was ended, or its server restarted."""

    fields = ("session",)
    session: str | None


class StaleRequest(EblaError):
    """The stored answer for this request id has been dropped; the request may have been applied before."""

    possibly_applied = True


class RequestReused(EblaError):
    """A request id came back with different rows. Nothing of the second body was applied."""


class SchemaMismatch(EblaError):
    fields = ("wanted", "found")
    wanted: int | None
    found: int | None
    retriable = True


class NotFound(EblaError, KeyError):
    """The named table or tablet, or the rows at `rows` (positions in the call), do not exist.

    For row errors the other rows of the call were applied; `applied` counts them.
    """

    fields: ClassVar[tuple[str, ...]] = ("what", "rows", "applied")
    what: str | None
    rows: list[int] | None
    applied: int | None

    def __str__(self) -> str:
        return self.message


class TableDropped(NotFound):
    """The table was dropped and is kept for a while: `table` is its id, `until_us` the time (of the epoch) at which it goes
    for good. Nothing is read from it or written to it before it is recalled."""

    fields = (*NotFound.fields, "table", "until_us")
    table: str | None
    until_us: int | None

    @staticmethod
    def of(table: str, name: str, until_us: int) -> TableDropped:
        until = datetime.fromtimestamp(until_us // 1_000_000, UTC)
        return TableDropped(
            f"table {name!r} (id {table}) was dropped, and is kept until {until:%Y-%m-%d %H:%M:%S} UTC; to use it again, "
            f"recall it: db.recall_table({name!r}), or `ebla table recall`",
            what=name,
            table=table,
            until_us=until_us,
        )


class AlreadyPresent(EblaError):
    """The named table, or the rows at `rows` (positions in the call), exist already.

    For row errors the other rows of the call were applied; `applied` counts them.
    """

    fields = ("what", "rows", "applied")
    what: str | None
    rows: list[int] | None
    applied: int | None


class Unavailable(EblaError):
    """The service cannot answer now. As the answer to a request: it was not carried out, and will not be, however late. Where
    that is not sure, OutcomeUnknown is raised instead."""

    retriable = True


class TimedOut(EblaError, TimeoutError):
    """The deadline passed. A write may have been applied, wholly or (per tablet) in part; never half a tablet batch."""

    fields = ("deadline_s",)
    deadline_s: float | None
    possibly_applied = True


class Internal(EblaError):
    """A defect in a handler. The role's log has the traceback."""

    possibly_applied = True


class ErrorFrame(msgspec.Struct, frozen=True, array_like=True):
    """An error on the wire: class name, message, fields."""

    kind: str
    message: str
    values: dict[str, Any]


Triple = tuple[str, str, dict[str, Any]]


_known: dict[str, type[EblaError]] = {}


def _kind(name: str) -> type[EblaError] | None:
    """By the name of its class, wherever that is defined."""
    if name not in _known:
        pending: list[type[EblaError]] = [EblaError]
        while pending:
            kind = pending.pop()
            _known[kind.__name__] = kind
            pending.extend(kind.__subclasses__())
    return _known.get(name)


def to_frame(error: EblaError) -> ErrorFrame:
    return ErrorFrame(type(error).__name__, error.message, error.values())


def from_frame(frame: ErrorFrame) -> EblaError:
    """The error as it was raised; an unknown kind (a newer peer's) becomes `Internal`."""
    kind = _kind(frame.kind)
    if kind is None:
        return Internal(f"{frame.kind}: {frame.message}")
    return kind(frame.message, **{k: v for k, v in frame.values.items() if k in kind.fields})


def to_triple(error: EblaError) -> Triple:
    """An error inside an answer that carries several outcomes."""
    return type(error).__name__, error.message, error.values()


def from_triple(triple: Triple) -> EblaError:
    return from_frame(ErrorFrame(*triple))


InvalidArgument = storage_errors.InvalidArgument
OldCopy = storage_errors.OldCopy
