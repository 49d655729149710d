"""The events of a recording: all changes of the file system, all requests and all answers, in one order.

A file or directory is a *node*, numbered in the order of creation; node 0 is the recorded directory. An event's number is its place
in the list. A power cut between two events is named by the number of the second.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ebla.storage.errors import Damaged
from ebla.storage.logs.entries import Position

FORMAT = 1
FILE, DIRECTORY, LINK = "file", "directory", "link"


class _Event(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    """The base of all events."""


class Write(_Event, frozen=True):
    """The bytes of a write call. None of them need be on the disk before a sync."""

    node: int
    offset: int
    data: bytes


class Truncate(_Event, frozen=True):
    node: int
    size: int


class Sync(_Event, frozen=True):
    """A sync of the node has returned. It promises the events before `covers`, its beginning."""

    node: int
    covers: int


class WriteThrough(_Event, frozen=True, tag="through"):
    """The write with this number used an O_DSYNC descriptor and has returned: it alone is promised."""

    write: int


class Made(_Event, frozen=True):
    """A file, directory or link was created. `target`: of a link."""

    directory: int
    name: str
    node: int
    kind: str
    target: str = ""


class Renamed(_Event, frozen=True):
    """An atomic rename, which replaces a node with the new name."""

    directory: int
    name: str
    to_directory: int
    to_name: str


class Removed(_Event, frozen=True):
    directory: int
    name: str


class Asked(_Event, frozen=True):
    """A request is about to reach a role. `message` is encoded as on the wire."""

    call: int
    address: str
    method: str
    message: bytes


class Answered(_Event, frozen=True):
    """The role's answer, encoded as on the wire; from here on it is a promise. `positions`: of its log entries, with their
    tablets."""

    call: int
    reply: bytes
    positions: tuple[tuple[str, Position], ...] = ()


class Started(_Event, frozen=True):
    """A role has started, as this incarnation of this instance."""

    address: str
    uuid: str
    seqno: int


class Found(_Event, frozen=True):
    """The end of a follower's log after a power cut: it shows the outcome of a request under way."""

    tablet: str
    index: int
    chain: int


class Point(_Event, frozen=True):
    """The role passed one of its named fault points."""

    name: str


DiskEvent = Write | Truncate | Sync | WriteThrough | Made | Renamed | Removed
RoleEvent = Asked | Answered | Started | Found | Point
Event = DiskEvent | RoleEvent


class Plan(msgspec.Struct, frozen=True):
    """The length and form of a life, and its planted defect, if any. With an even seed, tables store rows as columns."""

    seed: int = 1
    steps: int = 120
    data_dirs: int = 0
    bulk: bool = False
    planted: str = ""


class Recording(msgspec.Struct, frozen=True):
    """`root`: the recorded directory; the events contain everything under it. Cuts are at `first` or later: the events before it
    are the durable state at the beginning."""

    plan: Plan
    root: str
    events: list[Event]
    first: int = 0
    format: int = FORMAT


def save(recording: Recording, file: Path) -> None:
    file.write_bytes(msgspec.msgpack.encode(recording))


def load(file: Path) -> Recording:
    try:
        found = msgspec.msgpack.decode(file.read_bytes(), type=Recording)
    except (OSError, msgspec.MsgspecError) as error:
        raise Damaged(f"{file} is no recording: {error}; record again", path=str(file)) from error
    if found.format != FORMAT:
        raise Damaged(f"{file} has format {found.format}, this version reads {FORMAT}", path=str(file))
    return found
