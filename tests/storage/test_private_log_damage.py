"""A damaged private log closes its environment, so that its tablet can still be deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebla.actors.tablet.lifecycle.bootstrap import Tail, open_private
from ebla.storage.errors import StorageError
from ebla.storage.lmdb import structure
from ebla.storage.logs.entries import START, make_entry
from ebla.storage.logs.private_log import PrivateLog, path_of
from tests.storage.disks import in_loop, opened

TABLET = "0" * 32
PAGE_BYTES = 4096


@in_loop
async def test_a_damaged_private_log_can_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "BYTES_MAX", 0)  # as if it were large: only reads find the damage

    async with opened(tmp_path) as disk:
        log = await PrivateLog.open(disk, TABLET, create=True)
        entries, previous = [], START
        for _ in range(200):
            entry = make_entry(TABLET, previous, 1, 0, 0, b"x" * 500)
            entries.append((entry, previous))
            previous = entry.position
        await log.extend(entries)
        file = Path(log.environment.directory) / "data.mdb"
    data = bytearray(file.read_bytes())
    for start in range(0, len(data), PAGE_BYTES):
        nodes = int.from_bytes(
            data[start + 14 : start + 16], "little"
        )  # the start of a page's nodes; old bytes are before it
        if (
            b"x" * 100 in data[start + nodes : start + PAGE_BYTES]
        ):  # a page of entries: its kind is overwritten
            data[start + 8 : start + 16] = b"\xff" * 8
    file.write_bytes(bytes(data))
    async with opened(tmp_path) as disk:
        with pytest.raises(StorageError, match="damaged inside"):
            await open_private(disk, Tail(TABLET))
        await disk.remove(path_of(TABLET))
        assert not disk.exists(path_of(TABLET))
