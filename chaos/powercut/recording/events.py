"""What a recording is made of: everything that reached the file system, and everything that was said, in one order.

A file or directory is a *node*, numbered as it is made; node 0 is the directory that is recorded. An event's number
is its place in the list. A power cut between two events is named by the number of the second.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ebla.storage.errors import Damaged
from ebla.storage.logs.entries import Position

FORMAT = 1
FILE, DIRECTORY, LINK = "file", "directory", "link"


class Write(msgspec.Struct, frozen=True, array_like=True, tag="write"):
    """Bytes that a write call was given. Nothing of it need be on the disk before a sync."""

    node: int
    offset: int
    data: bytes


class Truncate(msgspec.Struct, frozen=True, array_like=True, tag="truncate"):
    node: int
    size: int


class Sync(msgspec.Struct, frozen=True, array_like=True, tag="sync"):
    """A sync of the node has returned. It promises the events before `covers`, its begin, and nothing later."""

    node: int
    covers: int


class WriteThrough(msgspec.Struct, frozen=True, array_like=True, tag="through"):
    """The write with this number went through an O_DSYNC descriptor and has returned: it alone is promised."""

    write: int


class Made(msgspec.Struct, frozen=True, array_like=True, tag="made"):
    """A name came to be. `target` is a link's."""

    directory: int
    name: str
    node: int
    kind: str
    target: str = ""


class Renamed(msgspec.Struct, frozen=True, array_like=True, tag="renamed"):
    """Atomic; what had the new name before is gone."""

    directory: int
    name: str
    to_directory: int
    to_name: str


class Removed(msgspec.Struct, frozen=True, array_like=True, tag="removed"):
    directory: int
    name: str


class Asked(msgspec.Struct, frozen=True, array_like=True, tag="asked"):
    """A request is about to reach a role. `message` is encoded as on the wire."""

    call: int
    address: str
    method: str
    message: bytes


class Answered(msgspec.Struct, frozen=True, array_like=True, tag="answered"):
    """The role's answer, encoded as on the wire; from here on it binds. `positions`: of the log entries that it
    speaks of, with their tablets."""

    call: int
    reply: bytes
    positions: tuple[tuple[str, Position], ...] = ()


class Started(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """A role is up, as this incarnation of this instance."""

    address: str
    uuid: str
    seqno: int


class Found(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """After a power cut a follower's log ends here: of what was under way, this much had been done."""

    tablet: str
    index: int
    chain: int


class Point(msgspec.Struct, frozen=True, array_like=True, tag="point"):
    """The role passed one of its named fault points."""

    name: str


Change = Write | Truncate | Sync | WriteThrough | Made | Renamed | Removed
Said = Asked | Answered | Started | Found | Point
Event = Change | Said


class Plan(msgspec.Struct, frozen=True):
    """What was recorded: how much of it, in which form, and the defect that was planted, if any."""

    seed: int = 1
    steps: int = 120
    data_dirs: int = 0
    bulk: bool = False
    planted: str = ""


class Recording(msgspec.Struct, frozen=True):
    """`root` is where it was made; everything under it is in the events. A cut lies at `first` or later: what came
    before is the state in which the recording began, all of it on the disk."""

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
