"""Records as blocks of Arrow rows, and rows as records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ebla.actors.errors import NotFound
from ebla.errors import RecordsTrimmed
from ebla.log import blocks, reading
from ebla.log.awaited import table_record
from ebla.log.options import RECORD_BYTES_MAX
from ebla.storage.errors import InvalidArgument
from tests.log.stage import Stage, play


def data(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


async def read(log: Any, part: range) -> list[pa.Table]:
    return [block async for block in blocks._blocks(log._ledgers, log.name, part)]


def records_of(found: list[pa.Table]) -> list[tuple[int, bytes]]:
    rows = pa.concat_tables(found)
    return list(zip(rows.column("position").to_pylist(), rows.column("data").to_pylist(), strict=True))


def test_tasks_read_a_log_ledger_by_ledger_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 30)

    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        assert await log._ledgers.ranges("events", None, None) == []
        for first in range(0, 100, 20):
            async with log.writer() as writer:
                await writer.append_many(data(first, first + 10))
                await writer.append_many(data(first + 10, first + 20))
        ranges = log._ledgers.ranges
        parts = await ranges("events", None, None)
        assert parts == [range(first, first + 20) for first in range(0, 100, 20)]
        assert await ranges("events", 25, 41) == [range(25, 40), range(40, 41)]
        assert await ranges("events", 50, 50) == await ranges("events", 500, None) == []
        (whole,) = await ranges("events", 0, 15)
        assert records_of(await read(log, whole)) == [(number, b"%d" % number) for number in whole]
        found = await read(log, range(15, 95))  # as neighbours that one task reads
        assert [block.num_rows for block in found] == [35, 30, 15]
        assert records_of(found) == list(zip(range(15, 95), data(15, 95), strict=True))
        monkeypatch.setattr(reading, "RANGES_MAX", 2)
        assert await ranges("events", 5, None) == [range(5, 60), range(60, 100)]

        with pytest.raises(InvalidArgument, match="end is 101, and log 'events' ends at position 100"):
            await ranges("events", 0, 101)
        await log.trim(30)
        with pytest.raises(RecordsTrimmed, match="before position 30"):
            await ranges("events", 29, None)
        with pytest.raises(RecordsTrimmed, match="before position 30"):
            await read(log, range(20, 40))
        db = stage.client()
        await db.drop_log("events")
        await db.create_log("events")
        with pytest.raises(NotFound, match="has no record at position 40: it was dropped"):
            await read(log, range(40, 60))

    play(scenario)


def test_records_that_are_tables_become_their_rows() -> None:
    tables = [pa.table({"n": [1, 2]}), pa.table({"n": pa.array([], pa.int64())}), pa.table({"n": [3]})]
    records = [table_record(table) for table in tables]
    block = pa.table([pa.array([7, 8, 9]), pa.array(records, pa.binary())], schema=blocks.SCHEMA)
    assert blocks._unpacked(block, "events", tables[0].schema) == pa.table({"n": [1, 2, 3]})
    with pytest.raises(InvalidArgument, match=r"the table at position 7 .* has other columns .*: n: int64"):
        blocks._unpacked(block, "events", pa.schema([("n", pa.int32())]))
    other = pa.table([pa.array([7]), pa.array([b"bytes"], pa.binary())], schema=blocks.SCHEMA)
    with pytest.raises(InvalidArgument, match="the record at position 7 of log 'events' is no Arrow table"):
        blocks._unpacked(other, "events", tables[0].schema)


def test_the_same_rows_become_the_same_records_in_whatever_blocks_they_come() -> None:
    rows = pa.table({"n": np.arange(25_000), "name": [f"n{n % 97}" for n in range(25_000)]})
    whole = list(blocks._packed([rows]))
    cut = [rows.slice(at, 1_234) for at in range(0, rows.num_rows, 1_234)]
    assert list(blocks._packed([rows.slice(0, 0), *cut])) == whole
    read = [pa.ipc.open_stream(record).read_all() for records in whole for record in records]
    assert [table.num_rows for table in read] == [10_000, 10_000, 5_000]
    assert pa.concat_tables(read).combine_chunks() == rows

    large = pa.table({"text": ["x" * (RECORD_BYTES_MAX // 4)] * 9})
    halves = list(blocks._packed([large]))
    assert sum(map(len, halves)) == 4
    assert all(len(record) <= RECORD_BYTES_MAX for records in halves for record in records)
    with pytest.raises(InvalidArgument, match="the rows have different columns"):
        list(blocks._packed([pa.table({"a": [1]}), pa.table({"b": [1]})]))


def test_the_column_data_becomes_records_a_few_megabytes_at_a_time() -> None:
    given = pa.table({"data": ["x" * 1_000_000] * 20, "other": range(20)})
    calls = list(blocks._values([given.slice(0, 0), given]))
    assert [record for records in calls for record in records] == [b"x" * 1_000_000] * 20
    assert 2 < len(calls) < 5
    for wrong in (pa.table({"data": [1]}), pa.table({"data": ["a", None]})):
        with pytest.raises(InvalidArgument, match="none of them null"):
            list(blocks._values([wrong]))
    with pytest.raises(InvalidArgument, match=r"there is no column 'data'.*tables=True"):
        list(blocks._values([pa.table({"record": [b"a"]})]))


def test_rows_with_dictionaries_become_the_same_records_in_any_blocks() -> None:
    words = pa.array([f"{number % 5000:0500d}" for number in range(20_000)])
    nested = pa.StructArray.from_arrays([words.dictionary_encode()], ["word"])
    rows = pa.table({"word": words.dictionary_encode(), "in": nested, "view": words.cast(pa.string_view())})
    whole = [record for records in blocks._packed([rows]) for record in records]
    parts = [pa.table(rows.slice(at, 7000).to_pydict()).cast(rows.schema) for at in range(0, 20_000, 7000)]
    assert [record for records in blocks._packed(parts) for record in records] == whole
    read = pa.concat_tables(pa.ipc.open_stream(record).read_all() for record in whole)
    assert read["word"].combine_chunks() == words and read["view"].combine_chunks() == words
    assert read["in"].combine_chunks().field("word") == words


def test_dictionaries_of_nested_values_become_values() -> None:
    points = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([{"a": 1}, {"a": 2}]))
    ((record,),) = blocks._packed([pa.table({"point": points})])
    read = pa.ipc.open_stream(record).read_all()
    assert read["point"].to_pylist() == [{"a": 1}, {"a": 2}, {"a": 1}]
    deep = pa.table({"deep": pa.StructArray.from_arrays([points], ["point"])})
    with pytest.raises(InvalidArgument, match=r"column 'deep' .* is no column of a record"):
        list(blocks._packed([deep]))
