"""Records of a tablet that pass their checksum and have another shape, as a later version may write them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from ebla.storage.directories.records import seal
from ebla.storage.environment import Put
from ebla.storage.errors import Corruption
from ebla.storage.rows.checksum import seed
from ebla.storage.schema import COLUMNS, ROWS
from ebla.storage.tablets import local_reader
from ebla.storage.tablets.positions import ALTERATION, META, POSITION, Flushed, _digest, flushed_of
from ebla.storage.tablets.results import CLIENT_BYTES, RESULTS, Results
from ebla.storage.tablets.tablet_store import TabletStore
from tests.storage.disks import in_loop
from tests.storage.local_owner import SCHEMA, TABLET, Owner, stored

OTHER = msgspec.msgpack.encode({"shape": "another"})


def record(key: bytes, body: bytes = OTHER, database: str = META) -> Put:
    return Put(database, [(key, seal(key, body))])


@pytest.mark.parametrize("storage", [ROWS, COLUMNS])
@in_loop
async def test_a_position_or_alteration_of_another_shape_is_corruption(tmp_path: Path, storage: str) -> None:
    owner = await Owner.open(str(tmp_path), storage)
    await owner.put(0, ["a"])
    environment = owner.store.environment
    found = flushed_of(environment, environment.path)
    position = msgspec.msgpack.encode(Flushed(found.position, found.answers, _digest(OTHER)))
    schema = stored(SCHEMA, storage)
    for changes in [record(ALTERATION), record(POSITION, position)], [record(POSITION)]:
        await environment.commit(changes)
        with (
            closing(environment.snapshot(views=storage == COLUMNS)) as pinned,
            pytest.raises(Corruption, match="cannot be read"),
        ):
            list(local_reader.batches(pinned, environment.path, TABLET, schema))
    with pytest.raises(Corruption, match="cannot be read"):
        TabletStore(environment, Results(), seed(TABLET), schema)
    await owner.disk.close()


@in_loop
async def test_an_answer_of_another_shape_is_corruption(tmp_path: Path) -> None:
    owner = await Owner.open(str(tmp_path), ROWS)
    environment = owner.store.environment
    for key in bytes(CLIENT_BYTES + 8), bytes(CLIENT_BYTES):
        await environment.commit([record(key, database=RESULTS)])
        with pytest.raises(Corruption, match=f"{key.hex()} cannot be read"):
            Results().load(environment, environment.path, 0)
    await owner.disk.close()
