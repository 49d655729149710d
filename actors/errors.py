"""Errors that travel between roles, and the form of errors on the wire.

A caller sees two of them instead of an answer. The first never travels; a role answers with the second if it does not
know the outcome itself:

    NotDelivered     the request surely did not run          send it again, anywhere
    OutcomeUnknown   it may have run, now or later           send it again with the same request id

The others are answers:

    NotLeader        this replica does not lead the tablet   follow `leader`, or ask the master
    NotActive        this master is not the active one       ask `active`, or another master
    TabletNotFound   this server has no such replica         ask the master again
    NotRunning       the role or replica is not ready yet    back off, then send it again
    ReplicaFailed    this replica's data failed a check      another replica must serve
    WrongServer      the server at this address is another   forget the old one
    OldCopy          the caller or the called role runs on   it ends; its directory is set aside
                     an old copy of its directory
    Throttled        a stated limit is full                  back off `retry_after_s`, then send it again
    StaleRequest     the answer to this request id is gone   its outcome is unknown for good
    RequestReused    one request id, two different bodies    a defect of the caller; use fresh ids
    SchemaMismatch   the tablet has another schema version   fetch the table again, then send it again
    NotFound / AlreadyPresent                                 the named thing, or the listed rows
    TableDropped     a NotFound: the table is kept           recall it
    Unavailable      no quorum, no master, no host           wait, or run `ebla check`
    Frozen           the cluster's level forbids it           wait for servers, or set the level
    ConfigurationMoved  the tablet's members have changed      read them again, then decide
    AlreadyInProgress   a copy, or a deletion, is under way    wait for its end
    IllegalState     the replica is in another state         read it again
    OldTerm          the caller no longer leads              it learns the new term by itself
    TabletRemoved    this server deleted the tablet for good  nothing; its table was dropped
    CopyExpired      the copy session has ended              begin a new one
    Internal         a defect                                report it; see the role's log

TimedOut, NoCluster and ConnectionClosed are raised at the caller's side, and never travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, TypeVar

import msgspec

from ebla.storage import errors as storage_errors
from ebla.storage.errors import EblaError

T = TypeVar("T")


class NetworkError(EblaError):
    """The caller has no answer."""

    address: str | None
    retriable = True


class NotDelivered(NetworkError):
    """The request surely did not run."""


class OutcomeUnknown(NetworkError):
    """The request may have run, may be running, or may never run."""

    possibly_applied = True


class NotLeader(EblaError):
    """`leader` is the address of the server that leads, if known; `term` the term this replica knows."""

    tablet: str | None
    leader: str | None
    term: int | None
    retriable = True


class NotActive(EblaError):
    """This master is a standby, or not sure that it is the active one. `active`: the address of the active one, if known."""

    active: str | None
    retriable = True


class TabletNotFound(EblaError):
    tablet: str | None
    retriable = True


class NotRunning(EblaError):
    tablet: str | None
    state: str | None
    retriable = True


class ReplicaFailed(EblaError):
    tablet: str | None
    reason: str | None
    retriable = True

    @staticmethod
    def of(tablet: str, reason: str | None) -> ReplicaFailed:
        """The refusal of a replica whose data is damaged."""
        message = f"the replica of tablet {tablet} failed here: {reason}; another replica serves"
        return ReplicaFailed(message, tablet=tablet, reason=reason)


class WrongServer(EblaError):
    wanted: str | None
    found: str | None


class Throttled(EblaError):
    """A limit is full: `limit` names it, `retry_after_s` is the least time to wait. Nothing was changed."""

    limit: str | None
    retry_after_s: float | None
    retriable = True


class ConfigurationMoved(EblaError):
    """Compare-and-set failed: `found` is the index of the committed configuration. Nothing was changed."""

    tablet: str | None
    found: int | None


class AlreadyInProgress(EblaError):
    """A copy, a deletion or a change of members of this tablet is under way here; nothing was changed."""

    tablet: str | None
    retriable = True


class IllegalState(EblaError):
    """The replica's `state` is not the one that the request expects. Nothing was changed."""

    tablet: str | None
    state: str | None


class OldTerm(EblaError):
    """A newer `term` than the request's is known here. Nothing was changed."""

    tablet: str | None
    term: int | None


class TabletRemoved(EblaError):
    """The tablet was deleted for good on this server; it is not made again."""

    tablet: str | None


class CopyExpired(EblaError):
    """The copy session has expired, was ended, or its server restarted."""

    session: str | None


class StaleRequest(EblaError):
    """The stored answer for this request id has been dropped; the request may have been applied before."""

    possibly_applied = True


class RequestReused(EblaError):
    """A request id was used again with different rows. Nothing of the second body was applied."""


class SchemaMismatch(EblaError):
    wanted: int | None
    found: int | None
    retriable = True


class NotFound(EblaError, KeyError):
    """The named table or tablet, or the rows at `rows` (positions in the call), do not exist.

    For row errors the other rows of the call were applied; `applied` counts them.
    """

    what: str | None
    rows: list[int] | None
    applied: int | None

    def __str__(self) -> str:
        return self.message


class TableDropped(NotFound):
    """The table was dropped and is kept for a while: `table` is its id, `until_us` the time (since the epoch) of its deletion.
    It is neither read nor written before it is recalled."""

    table: str | None
    until_us: int | None

    @staticmethod
    def of(table: str, name: str, until_us: int) -> TableDropped:
        """The error of the table with this id and name, with the remedy."""
        until = datetime.fromtimestamp(until_us // 1_000_000, timezone.utc)
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

    what: str | None
    rows: list[int] | None
    applied: int | None


class Frozen(EblaError):
    """The cluster is at a `level` at which the master does not do this by itself; see `ebla level`. Nothing was changed."""

    level: str | None


class Unavailable(EblaError):
    """The service cannot answer now. A request with this answer was not carried out and never will be; if that is not
    certain, OutcomeUnknown is raised instead."""

    retriable = True


class NoCluster(Unavailable):
    """There is no Ray cluster to connect to."""


class TimedOut(EblaError, TimeoutError):
    """The deadline passed. A write may have been applied as a whole or on some tablets; never half a tablet's batch."""

    deadline_s: float | None
    possibly_applied = True


class ConnectionClosed(EblaError):
    """The connection was closed, or this process was forked from its process. A write under way may have been applied."""

    possibly_applied = True


class Internal(EblaError):
    """A defect in a handler. The role's log has the traceback."""

    possibly_applied = True


class ErrorFrame(msgspec.Struct, frozen=True, array_like=True):
    """An error on the wire: class name, message, fields."""

    kind: str
    message: str
    values: dict[str, Any]


Triple = tuple[str, str, dict[str, Any]]  # an error inside an answer that carries several outcomes


_known: dict[str, type[EblaError]] = {}


def _kind(name: str) -> type[EblaError] | None:
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
    """The error as it was raised; an unknown kind (of a newer peer) becomes `Internal`."""
    kind = _kind(frame.kind)
    if kind is None:
        return Internal(f"{frame.kind}: {frame.message}")
    return kind(frame.message, **{k: v for k, v in frame.values.items() if k in kind.fields})


def to_triple(error: EblaError) -> Triple:
    return type(error).__name__, error.message, error.values()


def from_triple(triple: Triple) -> EblaError:
    return from_frame(ErrorFrame(*triple))


def outcomes(results: Sequence[T | None], triples: Sequence[Triple | None]) -> list[T | EblaError]:
    """The parts of an answer with several outcomes: each has a result or an error."""
    found: list[T | EblaError] = []
    for result, triple in zip(results, triples, strict=True):
        outcome = result if triple is None else from_triple(triple)
        assert outcome is not None, "each part has a result or an error"
        found.append(outcome)
    return found


InvalidArgument = storage_errors.InvalidArgument
OldCopy = storage_errors.OldCopy
