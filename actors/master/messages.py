"""What masters, and whoever operates them, say to each other; see group.py and standby.py."""

from __future__ import annotations

import msgspec

from ebla.actors.journal.channel import ChannelStatus
from ebla.actors.journal.messages import JournalId


class HandOverRequest(msgspec.Struct, frozen=True):
    """Asked of the active master: another one shall be it, `to` or whoever knows most of the catalog."""

    to: str | None = None


class HandOverReply(msgspec.Struct, frozen=True):
    active: str


class CheckpointRequest(msgspec.Struct, frozen=True):
    """One chunk of the catalog's last checkpoint, counted from 0."""

    chunk: int


class CheckpointChunk(msgspec.Struct, frozen=True):
    """The checkpoint reflects transaction `txid` and has so many chunks; `digest` is of the whole of it. All zero: this
    master has none."""

    txid: int
    chunks: int
    digest: int
    data: bytes


class JournalWriterStatus(msgspec.Struct, frozen=True):
    """The journal as the active master writes it: the segment in progress starts at `segment`, and of each node is told how
    far it is behind."""

    journal: JournalId
    epoch: int
    committed: int
    segment: int
    nodes: tuple[ChannelStatus, ...]
