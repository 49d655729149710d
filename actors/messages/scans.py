"""Messages of snapshot scans; a part of __init__.py, from where they are imported."""

from __future__ import annotations

import msgspec


class ScanRequest(msgspec.Struct, frozen=True):
    """Opens a snapshot scan. `start`, `stop`: bounds of the encoded key. `predicate`: see
    storage/predicates. Unless `at_leader`, any running replica may answer from its applied rows.

    `others`: further tablets to be scanned alike, while the whole answer is below `block_bytes`."""

    tablet: str
    schema_version: int
    columns: tuple[str, ...]
    predicate: bytes | None = None
    start: bytes = b""
    stop: bytes | None = None
    limit: int | None = None
    block_bytes: int = 1_500_000
    at_leader: bool = True
    others: tuple[str, ...] = ()


class ScanContinue(msgspec.Struct, frozen=True):
    """Asks for the next block; the open was answered with block 0. A repeated request is answered again."""

    scanner: str
    block: int


class ScanClose(msgspec.Struct, frozen=True):
    scanner: str


class ScanBlock(msgspec.Struct, frozen=True):
    """One block of a scan. `data`: an Arrow IPC stream of record batches. `scanner`: None in the last block.
    `index`: the log index that the snapshot reflects. `others`: the first blocks of other tablets that were asked for and
    could be scanned, with their tablets; all but the last of them are whole."""

    scanner: str | None
    block: int
    data: bytes
    rows: int
    index: int
    others: tuple[tuple[str, ScanBlock], ...] = ()
