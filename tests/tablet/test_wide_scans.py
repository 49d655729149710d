"""The first blocks of several small tablets in one answer (serving/scans.py)."""

from __future__ import annotations

from typing import Any

from ebla.actors import messages as m
from ebla.storage.errors import Corruption
from tests.tablet.harness import HOSTS, TABLET, Group, row, simulated

HOST = HOSTS[0]
LARGE_BYTES = 1 << 20


async def filled(group: Group, count: int) -> list[str]:
    """Tablets with three rows each, on every host."""
    tablets = await group.create_many(count)
    for tablet in tablets:
        await group.upsert(row(1), row(2), row(3), tablet=tablet)
    await group.sleep(1.0)  # the followers have applied them
    return tablets


async def scan(group: Group, tablets: list[str], **options: Any) -> dict[str, m.ScanBlock]:
    """The blocks that one request for these tablets is answered with."""
    options = {"block_bytes": LARGE_BYTES, "at_leader": False, **options}
    request = m.ScanRequest(tablets[0], 0, ("k",), others=tuple(tablets[1:]), **options)
    first = await group.ask(HOST, "scan", request, m.ScanBlock)
    return {tablets[0]: first, **dict(first.others)}


@simulated()
async def test_small_tablets_share_one_answer(group: Group) -> None:
    tablets = await filled(group, 5)
    found = await scan(group, tablets)
    assert {tablet: (block.rows, block.scanner) for tablet, block in found.items()} == dict.fromkeys(
        tablets, (3, None)
    )
    assert group.server(HOST).scans.open_count == 0


@simulated()
async def test_an_answer_ends_with_the_first_tablet_that_fills_it(group: Group) -> None:
    tablets = await filled(group, 5)
    size = len((await scan(group, tablets[:1]))[tablets[0]].data)
    assert list(await scan(group, tablets, block_bytes=2 * size)) == tablets[:2]
    first = await scan(group, tablets, block_bytes=1)
    assert list(first) == tablets[:1], "it has more rows than one block"


@simulated()
async def test_an_answer_has_no_more_tablets_than_its_limit_needs(group: Group) -> None:
    tablets = await filled(group, 5)
    found = await scan(group, tablets, limit=5)
    assert [block.rows for block in found.values()] == [3, 3]


@simulated()
async def test_a_tablet_that_cannot_be_scanned_is_left_out_of_the_answer(group: Group) -> None:
    tablets = await filled(group, 4)
    group.replica(HOST, tablets[1]).fail(Corruption("its rows are damaged"))
    found = await scan(group, [tablets[0], tablets[1], "f" * 32, *tablets[2:]])
    assert list(found) == [tablets[0], *tablets[2:]]


@simulated()
async def test_tablets_that_other_servers_lead_are_left_out_of_a_read_at_the_leader(group: Group) -> None:
    tablets = [TABLET, *await filled(group, 6)]
    led = [tablet for tablet in tablets if await group.leader(tablet) == HOST]
    if not led:
        await group.lead(HOST)
        led = [TABLET]
    others = [tablet for tablet in tablets if tablet != led[0]]
    assert list(await scan(group, [led[0], *others], at_leader=True)) == [
        each for each in tablets if each in led
    ]
