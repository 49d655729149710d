"""A client of one tablet at a time: writes until answered, scans and reads."""

from __future__ import annotations

import asyncio
import io

import pyarrow as pa

from ebla.actors import messages as m
from ebla.actors.errors import from_triple
from ebla.chaos.powercut.life.machine import RETRY_S, SERVER, TRIES_MAX, Machine
from ebla.chaos.powercut.recording.lanes import CODEC, COLUMNS, Rows
from ebla.storage.errors import EblaError
from ebla.storage.rows import checksum


class Nonsense(EblaError):
    """An answer that contradicts itself."""


async def write(machine: Machine, tablet: str, batch: bytes, *, tries_max: int = TRIES_MAX) -> m.WriteResult:
    """Send the batch until it is answered."""
    request = m.WriteRequest((m.TabletWrite(tablet, batch),), 5.0)
    refusal: EblaError | None = None
    for _ in range(tries_max):
        reply = await machine.ask(SERVER, "write", request, m.WriteReply)
        (result,), (triple,) = reply.results, reply.errors
        if result is not None:
            return result
        assert triple is not None
        refusal = from_triple(triple)
        if not (refusal.retriable or refusal.possibly_applied):
            raise refusal
        await asyncio.sleep(RETRY_S)
    assert refusal is not None
    raise refusal


async def scan(machine: Machine, tablet: str, *, at_leader: bool = True) -> Rows:
    request = m.ScanRequest(tablet, CODEC.schema.version, COLUMNS, at_leader=at_leader)
    block = await machine.ask(SERVER, "scan", request, m.ScanBlock)
    blocks = [block]
    while block.scanner is not None:
        more = m.ScanContinue(block.scanner, block.block + 1)
        block = await machine.ask(SERVER, "scan_more", more, m.ScanBlock)
        blocks.append(block)
    rows = [row for b in blocks for row in pa.ipc.open_stream(io.BytesIO(b.data)).read_all().to_pylist()]
    keys = [row["k"] for row in rows]
    if keys != sorted(set(keys)):
        raise Nonsense(f"a scan of {tablet} gives keys twice, or out of order: {keys}")
    return dict(zip(keys, rows, strict=True))


async def get(machine: Machine, tablet: str, keys: list[int]) -> Rows:
    """The existing rows of these keys."""
    encoded = [CODEC.encode_key({"k": key}) for key in keys]
    request = m.ReadRequest(CODEC.schema.version, (m.TabletKeys(tablet, encoded),))
    reply = await machine.ask(SERVER, "read", request, m.ReadReply)
    if (triple := reply.errors[0]) is not None:
        raise from_triple(triple)
    seed = checksum.seed(tablet)
    values = zip(keys, encoded, reply.values[0] or [], strict=True)
    return {key: CODEC.decode_row(raw, value, seed) for key, raw, value in values if value is not None}
