"""Members that a forced configuration gave up return together, while no master serves. They are a majority of their own
configuration."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages.stream import FORCED, AppendReply, AppendRequest
from ebla.actors.replication.configuration import NON_VOTER
from ebla.actors.tablet.raft.forced import GIVEN_UP, NOT_COMMITTED
from ebla.storage.logs.entries import WRITE, Entry
from tests.tablet.copies import entomb, until
from tests.tablet.harness import FIVE, TABLET, Group, row, simulated
from tests.tablet.test_members import adds, change, force, members, peer_of, promoted, uuids

NEW = tuple(range(100, 110))


async def forced(group: Group, *keep: str) -> None:
    """Crash all hosts except `keep`, force the configuration to these, and write rows to them."""
    lost = [host for host in group.hosts if host not in keep]
    await group.upsert(*[row(k) for k in range(20)])
    await group.settle()
    group.crash(*lost)
    await group.sleep(5.0)
    await force(group, keep[0], uuids(group, *keep))
    group.leader_hint = keep[0]
    for k in NEW:
        await group.upsert(row(k, "by the survivors"))


async def learned(group: Group, *lost: str) -> None:
    await until(
        group,
        lambda: any(group.replica(host).core.given_up for host in lost),
        "one of them learns the forced epoch",
    )
    await group.sleep(10.0)
    assert not any(group.replica(host).leads for host in lost)


@pytest.mark.parametrize("seed", [2, 3, 4])
@simulated(hosts=FIVE)
async def test_two_kept_of_five_keep_leader_and_term_when_the_three_others_campaign(
    group: Group, seed: int
) -> None:
    leader = await group.leader()
    one, two, *lost = await group.followers()
    lost.append(leader)
    await forced(group, one, two)
    term = group.replica(one).core.term
    for _ in range(2):  # a restart forgets the forced epoch, and they learn it again
        await asyncio.gather(*[group.restart(host) for host in lost])
        await learned(group, *lost)
        assert group.replica(one).leads and group.replica(one).core.term == term
        assert group.replica(two).core.leader == group.uuid(one)
        group.crash(*lost)
    await asyncio.gather(*[group.restart(host) for host in lost])
    await group.upsert(row(200, "by the survivors"))
    order = members(group, one).order
    for host in lost:  # as the master requests when it serves
        await group.delete(host, order[1], unsafe=order[0])
    await group.sleep(5.0)
    assert group.replica(one).core.term == term
    assert [found["v"] for found in await group.get(*NEW, 200)] == ["by the survivors"] * 11


@pytest.mark.parametrize("seed", [0, 1, 4])
@simulated()
async def test_a_single_kept_member_ignores_the_two_others_which_report_that_they_were_given_up(
    group: Group, seed: int
) -> None:
    leader, survivor, other = await group.roles()
    lost = [leader, other]
    await forced(group, survivor)
    before = group.replica(survivor).core.hard_state
    await asyncio.gather(*[group.restart(host) for host in lost])
    await learned(group, *lost)
    given_up_hosts = [host for host in lost if group.replica(host).core.given_up]
    for host in given_up_hosts:
        report = group.replica(host).report()
        assert report.error == GIVEN_UP and report.configuration.unsafe == 0 and report.state == "running"
    refused = await group.write_once(given_up_hosts[0], group.batch(m.UPSERT, [row(1)], 99), 0.5)
    assert isinstance(refused, errors.NotLeader)
    assert group.replica(survivor).core.hard_state == before and group.replica(survivor).leads
    await entomb(group, given_up_hosts[0])
    assert group.tombstone(given_up_hosts[0]).voter.forced_epoch == 1, "the tombstone keeps the forced epoch"
    assert [found["v"] for found in await group.get(*NEW)] == ["by the survivors"] * 10


@simulated()
async def test_a_member_of_the_old_side_is_copied_in_place_when_it_is_added_again(group: Group) -> None:
    """Rows that only the old side acknowledged are gone from it."""
    leader, survivor, other = await group.roles()
    lost = [leader, other]
    await forced(group, survivor)
    group.cut(survivor, *lost)
    await asyncio.gather(*[group.restart(host) for host in lost])
    await until(
        group, lambda: any(group.replica(host).leads for host in lost), "the old side elects a leader"
    )
    group.leader_hint = other
    await group.upsert(*[row(k, "by the old side") for k in (*NEW, 300)])
    await group.upsert(row(301, "by the old side"))
    await until(group, lambda: group.replica(other).core.commit_index >= 4, "the old side has committed it")
    group.heal()
    await learned(group, *lost)
    group.leader_hint = survivor
    order = members(group, survivor).order
    wanted = peer_of(group, other, member=NON_VOTER, promote=True)
    await change(group, survivor, adds(wanted), index=order[1], unsafe=order[0])
    await promoted(group, survivor, wanted)
    assert not group.replica(other).core.given_up and members(group, other).unsafe == 1
    assert group.server(other).copies.done == 1
    group.crash(leader)
    await group.upsert(row(302, "by both"))
    await until(
        group,
        lambda: group.replica(other).store.applied.index == group.replica(survivor).log.last_index,
        "all",
    )
    found = await group.scan(other, columns=("k", "v"))
    values = dict(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))
    assert {values[k] for k in NEW} == {"by the survivors"} and values[302] == "by both"
    assert 300 not in values and 301 not in values


@simulated()
async def test_a_message_of_the_old_side_is_not_treated_as_damage(group: Group) -> None:
    """Its entries do not fit the chain, and the answer says why they are refused."""
    survivor, _ = await group.followers()
    await forced(group, survivor)
    replica, clock = group.replica(survivor), group.server(survivor).world.clock
    before = replica.log.position(2)
    sent = AppendRequest(before.term, "c", 2, before.term, (Entry(3, before.term, WRITE, 0, b"x", 0),), 3)
    answer = replica.receive(clock.monotonic(), "c", sent, knows_us=True)
    assert isinstance(answer, AppendReply) and answer.reason == FORCED


@simulated()
async def test_forcing_is_refused_while_a_kept_member_has_a_higher_forced_epoch(group: Group) -> None:
    survivor, other = await group.followers()
    await forced(group, survivor)
    await group.restart(other)
    with pytest.raises(errors.InvalidArgument, match="ask that one to lead"):
        await force(group, other, uuids(group, survivor, other))
    assert group.replica(survivor).leads and members(group, survivor).unsafe == 1


@pytest.mark.parametrize("restarted", [False, True])
@simulated()
async def test_a_server_with_the_forced_epoch_copies_nothing_from_the_side_given_up(
    group: Group, restarted: bool
) -> None:
    """A tombstone asks no peer, so it must keep the forced epoch itself."""
    leader, survivor, other = await group.roles()
    await forced(group, survivor)
    order = members(group, survivor).order
    await group.restart(other)
    await group.delete(other, order[1], unsafe=order[0])
    if restarted:
        await group.restart(other)
    group.cut(survivor, leader, other)
    await group.restart(leader)
    source = group.replica(leader).core.configuration.peer(group.uuid(leader))
    request = m.StartCopyRequest(group.uuid(other), TABLET, source, 99, m.DELETED)
    with pytest.raises(errors.IllegalState, match="forced"):
        await group.ask(other, "start_copy", request, m.Empty)
    await group.sleep(10.0)
    assert group.replica(leader).core.given_up, "the tombstone refuses its vote with the forced epoch"


@simulated()
async def test_a_tombstone_keeps_a_forced_epoch_that_it_learns_later_even_after_a_cut_off_copy(
    group: Group,
) -> None:
    leader, survivor, other = await group.roles()
    await group.delete(other, 9999)
    await group.upsert(row(1))
    group.crash(leader, other)
    await group.sleep(5.0)
    await force(group, survivor, uuids(group, survivor))
    order = members(group, survivor).order
    await group.restart(other)
    await group.delete(other, order[1], unsafe=order[0])
    await group.restart(other)
    assert group.tombstone(other).voter.forced_epoch == order[0]
    server = group.server(other)
    server.consensus.save = lambda *given: asyncio.Event().wait()  # type: ignore[method-assign]
    await change(group, survivor, adds(peer_of(group, other, member=NON_VOTER)))

    def marked() -> bool:
        superblock = server.lifecycle.superblock(TABLET)
        return superblock is not None and superblock.state == m.COPYING

    await until(group, marked, "a copy has just begun")
    group.crash(survivor)
    await group.restart(other)
    assert group.tombstone(other).voter.forced_epoch == order[0]


@simulated()
async def test_reports_with_an_uncommitted_forced_configuration_are_marked_as_such(group: Group) -> None:
    """The others may continue without it, in far lower terms."""
    leader, survivor, other = await group.roles()
    await group.upsert(row(1))
    group.crash(leader)
    replica = group.replica(survivor)
    original = replica.core.force_configuration

    def dies(*given: object, **more: object) -> None:
        group.crash(other)
        original(*given, **more)  # type: ignore[arg-type]

    replica.core.force_configuration = dies  # type: ignore[method-assign]
    group.cut(survivor, other)
    await group.sleep(5.0)
    group.heal()
    with pytest.raises(errors.OutcomeUnknown, match="is not committed: too few of"):
        await force(group, survivor, uuids(group, survivor, other))
    assert replica.core.configuration.unsafe == 1 and replica.report().error == NOT_COMMITTED
    await group.restart(other)
    await until(group, lambda: replica.report().error is None, "the other kept member has it")
    assert members(group, survivor).unsafe == 1
