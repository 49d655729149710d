"""What can go wrong, told by what the caller should do next. The root of every error ebla raises.

    InvalidArgument   the request can never succeed as it is     change the field it names
    OverLimit         one of those: it passes a stated limit     ask for less, or have the operator raise the limit
    Corruption        bytes on disk fail their check             rebuild this replica from a peer, never from here
    DiskFailed        a sync failed: nothing more is believed    the role stops; the directory is set aside
    DataDiskFailed    one of several data disks is lost          rebuild the replicas on it from their peers
    DiskFull          no space left; nothing was changed         free space, then send it again
    DirectoryLocked   another incarnation holds this directory   wait for it to end; never run two
    Damaged           a directory that must exist is missing or  restore it, or come back as a new server
                      unreadable: damaged is never "new"
    OldCopy           a directory is an older copy of itself     set it aside, and come back as a new server

Every error is a value with fields: it crosses the wire by its class name and fields (actors/errors.py), and
its message names what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar


class EblaError(Exception):
    """The root of every error that ebla raises on purpose.

    A subclass lists its `fields`; they are keyword arguments, attributes, and what travels on the wire.
    `possibly_applied` says whether the request that got this error may have taken effect: by its kind, or because it had been
    sent before and nobody knows what became of that.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    possibly_applied: bool = False
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, **values: Any) -> None:
        super().__init__(message)
        self.message = message
        unknown = set(values) - set(self.fields)
        assert not unknown, f"{type(self).__name__} has no field {sorted(unknown)}"
        for name in self.fields:
            setattr(self, name, values.get(name))

    def values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.fields}

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.values(), self.possibly_applied)


def _rebuild(
    kind: type[EblaError], message: str, values: dict[str, Any], possibly_applied: bool
) -> EblaError:
    error = kind(message, **values)
    error.possibly_applied = possibly_applied
    return error


class InvalidArgument(EblaError, ValueError):
    """The request can never succeed as it is. `column` and `row` (position in the call) say where, if known."""

    fields: ClassVar[tuple[str, ...]] = ("column", "row")
    column: str | None
    row: int | None


class StorageError(EblaError):
    """Something below the role went wrong."""

    fields: ClassVar[tuple[str, ...]] = ("path",)
    path: str | None


class OverLimit(InvalidArgument):
    """A stated limit would be passed: `limit` names it, `most` is what it allows. Nothing was changed."""

    fields = (*InvalidArgument.fields, "limit", "most")
    limit: str | None
    most: int | None


class Corruption(StorageError):
    """A record fails its checksum. It is never served and never copied."""


class DiskFailed(StorageError):
    """A commit failed in the device. The environment is poisoned: every later call raises this again."""


class DataDiskFailed(Corruption):
    """The disk under this replica is lost, and others go on: as if all of it failed its checksums."""

    retriable = True


class DiskFull(StorageError):
    """The device has no space left. Nothing was changed; reads go on."""

    retriable = True


class DirectoryLocked(StorageError):
    """Another process holds this role's directory. Two incarnations never write one directory."""


class Damaged(StorageError):
    """A directory or file that must be there is missing or unreadable. Never taken for "new"."""


class OldCopy(StorageError):
    """A server runs on an older copy of its directory: another incarnation of it, with a number as high or higher, was
    heard. `server` is its uuid, `shown` the number that it shows, `known` the highest that was heard."""

    fields = ("path", "server", "shown", "known")
    server: str | None
    shown: int | None
    known: int | None


class Forgotten(OldCopy):
    """An operator told that the server is gone for good. Its directory is given up as an old copy is."""


class SnapshotExpired(StorageError):
    """A snapshot was closed by the server (idle too long, or the map had to grow). Open a new one."""

    retriable = True


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
