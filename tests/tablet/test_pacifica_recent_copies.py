"""After a restart of all servers, one of them on a copy of its directory of the same minute, whose age no number shows: the voters with
everything lead, and nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ebla.actors.errors import OutcomeUnknown
from ebla.actors.master.catalog.edits import TableAltered
from ebla.actors.messages.pacifica import NOTHING
from ebla.actors.messages.peers import Envelope, EnvelopeReply
from ebla.chaos.simulation.medium import DurableState
from ebla.chaos.simulation.network import SimulatedNetwork
from tests.tablet.appointing import LIMITS, MASTER, PacificaGroup, pacifica
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
    edit = TableAltered(f"alter to {least}", 0, known.table, known.name, known.schema, least)
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


async def end(group: PacificaGroup, *away: str, copy: DurableState) -> None:
    """These servers end; the last one starts with the copy as soon as it is wanted."""
    group.crash(*away)
    group.cluster.put_disk(address(away[-1]), copy)
    group.leader_hint = None


async def return_without_the_last_row(group: PacificaGroup) -> None:
    """A commits a row and ends. B has the row, and has not learned that it is committed. C returns on a copy without it."""
    copy, primary = group.disk(C).copy(), group.core(A)
    writing, committed = asyncio.ensure_future(group.upsert(row(8))), primary.commit_index
    while primary.commit_index == committed:
        await group.sleep(0.0002)
    group.cut(A, B)
    await writing
    await end(group, A, C, copy=copy)
    group.heal()
    group.cluster.launch(address(C), group.make(C))


@pytest.mark.parametrize("new_master", [False, True])
@pacifica()
async def test_a_voter_that_has_followed_the_primary_leads_before_a_copy_with_a_longer_log(
    group: PacificaGroup, new_master: bool
) -> None:
    """The end of the log of B is as B reported it when it began to follow. After a take-over no server has run for long."""
    await write(group, *EARLIER)
    await group.sleep(LIMITS.stable_s)
    if new_master:
        group.stop_master()
        await group.start_master()
        await group.sleep(2 * LIMITS.grace_s)
    await write(group, *LATER)
    await return_without_the_last_row(group)
    assert await group.get(*LATER, 8) == [row(number) for number in (*LATER, 8)]


@pacifica()
async def test_an_alteration_gives_no_ballot_to_a_process_that_has_just_begun(group: PacificaGroup) -> None:
    """The former process of the primary has ended, the next one is recorded, and has no lease yet."""
    await write(group, *EARLIER)
    await alter_minimum(group, 3)
    await group.sleep(LIMITS.stable_s)
    hosts = {group.uuid(host): host for host in HOSTS}
    copies = {host: group.disk(host).copy() for host in HOSTS}
    await write(group, *LATER)
    group.crash_all()
    await group.sleep(2 * LIMITS.grace_s)
    uuid = group.stored.primary or ""
    first, recorded = hosts[uuid], group.master.catalog.incarnations
    group.cluster.put_disk(address(first), copies[first])
    before = recorded[uuid].start
    group.cluster.launch(address(first), group.make(first))
    await until(group, lambda: recorded[uuid].start != before, "the process is recorded", seconds=5.0)
    altering = asyncio.ensure_future(alter_minimum(group, 2))
    await group.sleep(0.7)
    for host in HOSTS:
        if host != first:
            group.cluster.launch(address(host), group.make(host))
    await require_everything(group)
    await altering


@pacifica()
async def test_the_end_of_a_secondary_gives_no_ballot_to_a_process_that_has_just_begun(
    group: PacificaGroup,
) -> None:
    """The same plan of the master has the silence of B and the restart of A, because the master's disk was late."""
    await write(group, *EARLIER)
    await group.sleep(LIMITS.stable_s)
    copy = group.disk(A).copy()
    await write(group, *LATER)
    now, watched = group.appointer._world.now, group.detector._servers[group.uuid(B)]
    while not 0.95 < now() - watched.heard_at < 0.97:
        await group.sleep(0.005)
    group.crash(B)
    await group.sleep(0.12)
    await end(group, C, A, copy=copy)
    await group.sleep(watched.heard_at + LIMITS.grace_s - now() - 0.35)
    group.cluster.state(MASTER).hang(0.5)
    group.cluster.launch(address(C), group.make(C))
    await group.sleep(0.08)
    group.cluster.launch(address(A), group.make(A))
    await group.sleep(2.0)
    assert await group.get(*EARLIER, *LATER) == [row(number) for number in (*EARLIER, *LATER)]


@pytest.mark.parametrize("least", [2, 3])
@pacifica()
async def test_a_copy_that_was_shown_what_it_lacks_leads_after_no_restart(
    group: PacificaGroup, least: int
) -> None:
    """It has led a ballot, which its log has and the others have not, because B did not reach the master."""
    await write(group, *EARLIER)
    await alter_minimum(group, least)
    await group.sleep(LIMITS.stable_s)
    copy = group.disk(C).copy()
    await write(group, *LATER)
    await group.sleep(1.0)
    group.cluster.network.cut(address(B), MASTER)
    await group.sleep(3.0)
    await end(group, A, C, copy=copy)
    group.cluster.launch(address(C), group.make(C))
    await group.sleep(9.0)
    assert group.core(C).hard_state.lacks != NOTHING, group.core(C).story()
    group.crash_all()
    group.heal()
    for host in HOSTS:
        group.cluster.launch(address(host), group.make(host))
    await require_everything(group)


async def until_verified(group: PacificaGroup, host: str) -> None:
    """Look after each message, from the first one on."""
    for _ in range(100_000):
        known = group.server(host).replicas.get(TABLET) if group.alive(host) else None
        if known is not None and known.core.verified:
            return
        await group.sleep(0.0001)
    raise AssertionError("no primary came")


@pytest.mark.parametrize("stale", [B, C])
@pacifica()
async def test_the_first_message_of_a_primary_that_has_just_begun_verifies_no_copy(
    group: PacificaGroup, stale: str
) -> None:
    """The primary knows of nothing committed yet, and ends before it sends what the copy lacks."""
    await write(group, *EARLIER)
    await group.sleep(LIMITS.stable_s)
    copy = group.disk(stale).copy()
    await write(group, *LATER)
    group.crash_all()
    group.cluster.put_disk(address(stale), copy)
    for host in HOSTS:
        group.cluster.launch(address(host), group.make(host))
    await until_verified(group, stale)
    leader = next(host for host in HOSTS if group.replica(host).leads)
    group.cut(leader, stale)
    await group.sleep(0.3)
    group.crash(leader)
    group.leader_hint = None
    group.heal()
    await group.sleep(10.0)
    group.cluster.launch(address(leader), group.make(leader))
    await require_everything(group)


@pacifica()
async def test_a_primary_that_has_not_learned_of_the_last_commit_verifies_no_copy_without_it(
    group: PacificaGroup,
) -> None:
    await write(group, *EARLIER)
    await group.sleep(LIMITS.stable_s)
    await write(group, *LATER)
    await return_without_the_last_row(group)
    await until_verified(group, C)
    group.cut(B, C)
    await group.sleep(0.2)
    group.crash(B)
    group.leader_hint = None
    group.heal()
    group.cluster.launch(address(A), group.make(A))
    await group.sleep(10.0)
    group.cluster.launch(address(B), group.make(B))
    assert await group.get(*EARLIER, *LATER, 8) == [row(number) for number in (*EARLIER, *LATER, 8)]


@pacifica()
async def test_a_message_to_the_former_process_does_not_verify_the_next_one(group: PacificaGroup) -> None:
    """It was sent before most rows were written, and arrives late."""
    await write(group, *EARLIER)
    await group.sleep(LIMITS.stable_s)
    sent: list[Envelope] = []
    group.cluster.network.tap(
        "replicate", Envelope, lambda each: sent.append(each) if each.dest.uuid == group.uuid(C) else None
    )
    await write(group, *EARLIER)
    late = [each for each in sent if any(request.entries for _, request in each.requests)][-1]  # type: ignore[union-attr]
    copy = group.disk(C).copy()
    await write(group, *LATER)
    group.crash_all()
    group.cluster.put_disk(address(C), copy)
    group.leader_hint = None
    for host in (B, C):
        group.cluster.launch(address(host), group.make(host))
    await until(group, lambda: group.alive(C) and TABLET in group.server(C).replicas, "C runs")
    await group.cluster.network.call(address(A), address(C), "replicate", late, EnvelopeReply, 3.0)
    assert not group.core(C).verified
    await group.sleep(12.0)
    group.cluster.launch(address(A), group.make(A))
    await require_everything(group)


@pacifica()
async def test_a_primary_on_a_copy_of_before_a_ballot_that_the_master_knows_all_held_does_not_lead(
    group: PacificaGroup,
) -> None:
    """No vote can be taken, so no later configuration says so."""
    await write(group, *EARLIER)
    await alter_minimum(group, 3)
    await group.sleep(LIMITS.stable_s)
    copy = group.disk(B).copy()
    await hand_over(group, B)
    await write(group, *LATER)
    await group.sleep(3.0)
    group.crash(A, C)
    await group.sleep(7.0)
    await end(group, B, copy=copy)
    group.cluster.launch(address(B), group.make(B))
    await group.sleep(20.0)
    for host in (A, C):
        group.cluster.launch(address(host), group.make(host))
    await require_everything(group)


@pacifica()
async def test_a_copy_that_has_run_for_long_and_met_no_primary_leads_after_one_with_a_longer_log(
    group: PacificaGroup,
) -> None:
    """It reaches the master, and no member."""
    await write(group, *EARLIER)
    await alter_minimum(group, 3)
    await group.sleep(LIMITS.stable_s)
    copy = group.disk(C).copy()
    await write(group, *LATER)
    await end(group, C, copy=copy)
    group.cut(A, C)
    group.cut(B, C)
    group.cluster.launch(address(C), group.make(C))
    await group.sleep(LIMITS.stable_s + 2.0)
    group.crash(A, B)
    group.leader_hint = None
    group.heal()
    group.cluster.launch(address(B), group.make(B))
    await group.sleep(12.0)
    group.cluster.launch(address(A), group.make(A))
    await require_everything(group)


@contextmanager
def losing_heartbeats(lost: dict[str, int]) -> Iterator[None]:
    """The first heartbeats of these hosts are lost, as many as given."""
    call = SimulatedNetwork.call

    async def losing(self: Any, sender: str, to: str, method: str, *more: Any) -> Any:
        host = sender.rpartition("/")[2]
        if method == "heartbeat" and lost.get(host):
            lost[host] -= 1
            await asyncio.sleep(LIMITS.grace_s)
            raise OutcomeUnknown("the heartbeat is lost", address=to)
        return await call(self, sender, to, method, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedNetwork, "call", losing)
        yield


@pytest.mark.parametrize("least", [2, 3])
@pacifica()
async def test_a_copy_waits_for_voters_with_leases_whose_first_reports_are_lost(
    group: PacificaGroup, least: int
) -> None:
    await write(group, *EARLIER)
    await alter_minimum(group, least)
    copy = group.disk(C).copy()
    await write(group, *LATER)
    await end(group, *HOSTS, copy=copy)
    with losing_heartbeats({A: 1, B: 1}):
        for host in HOSTS:
            group.cluster.launch(address(host), group.make(host))
        await group.sleep(2 * LIMITS.grace_s)
    await require_everything(group)
