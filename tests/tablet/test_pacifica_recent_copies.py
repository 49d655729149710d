"""After a restart of all servers, one of them on a copy of its directory of the same minute, whose age no number shows: the voters with
everything lead, and nothing is lost."""

from __future__ import annotations

import itertools

import pytest

from ebla.actors.master.catalog.edits import TableAltered
from tests.tablet.appointing import LIMITS, PacificaGroup, pacifica
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, TABLET, address, row

A, B, C = HOSTS
EARLIER, LATER = (1,), range(2, 8)  # rows that the copy has, and those that it lacks


async def write(group: PacificaGroup, *rows: int) -> None:
    for number in rows:
        await group.upsert(row(number))
    await group.settle()


async def hand_over(group: PacificaGroup, host: str) -> None:
    leader = await group.leader()
    core, now = group.core(leader), group.server(leader).world.now()
    group.server(leader).rounds.step(group.replica(leader), core.step_down, now, group.uuid(host))
    await until(group, lambda: group.replica(host).leads, f"{host} leads")


async def alter_minimum(group: PacificaGroup, least: int) -> None:
    master = group.master
    known = next(iter(master.catalog.tables.values()))
    edit = TableAltered("alter", 0, known.table, known.name, known.schema, least)
    await master.scribe.change("alter", lambda: [edit], lambda: master.appointer.altered([TABLET]))
    await until(group, lambda: group.stored.min_members == least, f"min_members is {least}")


async def return_on_a_copy(
    group: PacificaGroup, copied: str, *, away_s: float, between_s: float, last: bool = False
) -> None:
    """All servers start after `away_s`, with `between_s` from one start to the next; the copied one first or last."""
    await group.sleep(away_s)
    for host in sorted(HOSTS, key=lambda host: (host == copied) == last):
        group.cluster.launch(address(host), group.make(host))
        await group.sleep(between_s)


async def require_everything(group: PacificaGroup) -> None:
    assert await group.get(*EARLIER, *LATER) == [row(number) for number in (*EARLIER, *LATER)]
    await write(group, 20)
    known = {host: group.core(host).last_index for host in HOSTS}
    await until(
        group, lambda: len({group.core(host).last_index for host in HOSTS}) == 1, f"all agree: {known}"
    )


async def copied(group: PacificaGroup, host: str, successor: str | None = None) -> None:
    """All servers end, and this one has a copy of its directory that lacks some rows, and the ballot of the successor."""
    await write(group, *EARLIER)
    await group.sleep(LIMITS.stable_s)
    copy = group.disk(host).copy()
    if successor is not None:
        await hand_over(group, successor)
    await write(group, *LATER)
    group.crash_all()
    group.cluster.put_disk(address(host), copy)


@pytest.mark.parametrize("last", [False, True], ids=["it starts first", "it starts last"])
@pacifica()
async def test_a_primary_on_a_copy_does_not_lead(group: PacificaGroup, last: bool) -> None:
    await copied(group, A)
    await return_on_a_copy(group, A, away_s=0.0, between_s=0.0, last=last)
    await require_everything(group)


@pytest.mark.parametrize(
    ("new_master", "between_s"), list(itertools.product([False, True], [0.0, 0.7, 3.0])), ids=str
)
@pacifica()
async def test_a_primary_on_a_copy_of_before_its_ballot_does_not_lead_it_again(
    group: PacificaGroup, new_master: bool, between_s: float
) -> None:
    await copied(group, B, successor=B)
    if new_master:
        group.stop_master()
        await group.sleep(1.0)
        await group.start_master()
    await return_on_a_copy(group, B, away_s=0.0, between_s=between_s)
    await require_everything(group)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(("away_s", "between_s"), list(itertools.product([2.0, 10.0], [0.0, 1.0])), ids=str)
@pytest.mark.parametrize("least", [2, 3])
@pacifica()
async def test_after_an_outage_a_voter_on_a_copy_waits_for_the_others(
    group: PacificaGroup, host: str, away_s: float, between_s: float, least: int
) -> None:
    """The master runs on, and takes votes away from servers that are silent for so long, down to `least`."""
    await write(group, *EARLIER)
    await alter_minimum(group, least)
    await copied(group, host)
    await return_on_a_copy(group, host, away_s=away_s, between_s=between_s)
    await require_everything(group)
