"""Errors of storage, by what the caller should do next, and the root of every error that ebla raises.

    InvalidArgument   the request can never succeed as it is     change the field it names
    OverLimit         an InvalidArgument: over a stated limit    ask for less, or have the operator raise the limit
    Corruption        bytes on disk fail their check             rebuild this replica from a peer, never from here
    DiskFailed        a sync failed: nothing more is trusted     the role stops; the directory is set aside
    DataDiskFailed    one of several data disks is lost          rebuild the replicas on it from their peers
    DiskFull          no space left; nothing was changed         free space, then send it again
    DirectoryLocked   another incarnation holds this directory   wait for it to end; never run two
    Damaged           a directory that must exist is missing or  restore it, or come back as a new server
                      unreadable: damaged is never "new"
    OldCopy           a directory is an older copy of itself     set it aside, and come back as a new server

Every error crosses the wire as its class name and fields (actors/errors.py). Its message names the remedy.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any, ClassVar


class EblaError(Exception):
    """The root of every error that ebla raises on purpose.

    The annotated attributes of a subclass are its `fields`: keyword arguments that travel on the wire. `possibly_applied`:
    the request may have taken effect, by the kind of error, or because an earlier attempt has no known result.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    possibly_applied: bool = False
    retriable: ClassVar[bool] = False
    full_traceback: TracebackType | None = (
        None  # of an error of the blocking API, with the frames inside of ebla
    )

    def __init_subclass__(cls) -> None:
        if "fields" not in cls.__dict__:
            own = inspect.get_annotations(cls)
            cls.fields = (*cls.fields, *(name for name, kind in own.items() if "ClassVar" not in str(kind)))

    def __init__(self, message: str, **values: Any) -> None:
        super().__init__(message)
        self.message = message
        unknown = set(values) - set(self.fields)
        assert not unknown, f"{type(self).__name__} has no field {sorted(unknown)}"
        for name in self.fields:
            setattr(self, name, values.get(name))

    def values(self) -> dict[str, Any]:
        """The fields and their values."""
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
    """The request can never succeed as it is. `column` and `row` (position in the call) locate the mistake, if known."""

    column: str | None
    row: int | None


def os_trouble(error: OSError) -> str:
    """What the operating system refuses, as a sentence without its number."""
    why = error.strerror or str(error) or type(error).__name__
    return why if error.filename is None else f"{error.filename}: {why}"


def add_note(error: BaseException, note: str) -> None:
    """BaseException.add_note, which Python 3.10 lacks: there, tracebacks do not show notes."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.__notes__ = [*getattr(error, "__notes__", ()), note]  # type: ignore[attr-defined]


def invalid_column(name: str, problem: str, row: int | None = None) -> InvalidArgument:
    """The error of a column, which begins with its name."""
    between = "" if problem[0] in ",:" else " "
    return InvalidArgument(f"column {name!r}{between}{problem}", column=name, row=row)


def require_positive(options: Any, names: Iterable[str], prefix: str = "") -> None:
    """Raise InvalidArgument unless these fields are greater than zero, those that are numbers."""
    for name in names:
        value = getattr(options, name)
        if isinstance(value, int | float) and not value > 0:
            raise InvalidArgument(f"{prefix}{name} must be greater than zero, not {value}")


class StorageError(EblaError):
    """Something below the role went wrong."""

    path: str | None


class OverLimit(InvalidArgument):
    """The request exceeds the limit named `limit`, which allows `most`. Nothing was changed."""

    limit: str | None
    most: int | None


class Corruption(StorageError):
    """A record fails its checksum. It is never served and never copied."""


class DiskFailed(StorageError):
    """A commit failed in the device. The environment is poisoned: every later call raises this again."""


class DataDiskFailed(Corruption):
    """The disk under this replica is lost, other disks work: handled as if every byte on it failed its checksum."""

    retriable = True


class TooManyFiles(StorageError):
    """This process can open no further file now. Nothing was changed: the same call may succeed later."""


class DiskFull(StorageError):
    """The device has no space left. Nothing was changed; reads still work."""

    retriable = True


class DirectoryLocked(StorageError):
    """Another process holds this role's directory. Two incarnations never write one directory."""


class Damaged(StorageError):
    """A directory or file that must exist is missing or unreadable. It is never treated as new."""


class OldCopy(StorageError):
    """A server runs on an older copy of its directory: another incarnation with the same or a higher number was seen.
    `server` is its uuid, `shown` its own number, `known` the highest number seen."""

    server: str | None
    shown: int | None
    known: int | None


class Forgotten(OldCopy):
    """An operator declared that the server is gone for good. Its directory is given up like an old copy."""


class SnapshotExpired(StorageError):
    """A snapshot was closed by the server (idle too long, or the map had to grow). Open a new one."""

    retriable = True


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the closest choice, or an empty string. Case does not matter."""
    from difflib import get_close_matches

    known = {choice.casefold(): choice for choice in choices}
    close = get_close_matches(word.casefold(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {known[close[0]]!r}?" if close else ""
