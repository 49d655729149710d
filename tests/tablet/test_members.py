"""Changes of a tablet's members: by compare-and-set at the leader, and forced when a majority is lost for good."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages.repair import ADD, MODIFY, REMOVE
from ebla.actors.replication.configuration import NON_VOTER, Configuration, Peer
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.raft import members as tablet_members
from tests.tablet.copies import entomb, fill, until
from tests.tablet.harness import HOSTS, TABLET, Group, address, row, simulated

SPARE = "host-d"


async def spare(group: Group, host: str = SPARE) -> Peer:
    """Start a server without a replica; return it as a pre-voter."""
    await group.cluster.start(address(host), group.make(host))
    return peer_of(group, host, member=NON_VOTER, promote=True)


def adds(peer: Peer) -> m.MemberChange:
    return m.MemberChange(ADD, peer)


def removes(peer: Peer) -> m.MemberChange:
    return m.MemberChange(REMOVE, peer)


def peer_of(group: Group, host: str, **kind: Any) -> Peer:
    return Peer(group.uuid(host), address(host), **kind)


def members(group: Group, host: str) -> Configuration:
    return group.replica(host).core.committed_configuration


async def change(
    group: Group,
    host: str,
    *changes: m.MemberChange,
    index: int | None = None,
    unsafe: int = 0,
    timeout_s: float = 5.0,
) -> Configuration:
    request = m.ChangeMembersRequest(group.uuid(host), TABLET, changes, index, timeout_s, unsafe)
    reply: m.MembersReply = await group.ask(host, "change_members", request, m.MembersReply, 10.0)
    return reply.configuration


def kinds(configuration: Configuration) -> dict[str, str]:
    return {peer.address[-6:]: peer.kind for peer in configuration.peers}


async def promoted(group: Group, leader: str, peer: Peer) -> None:
    def voter() -> bool:
        found = members(group, leader).peer(peer.uuid)
        return found is not None and found.kind == "voter"

    await until(group, voter, "the pre-voter is promoted")


@simulated()
async def test_a_new_member_is_copied_promoted_and_takes_part(group: Group) -> None:
    leader = await group.leader()
    await fill(group, 300)
    new = await spare(group)
    answered = await change(group, leader, adds(new), index=-1)
    assert answered == members(group, leader) and kinds(answered)[SPARE] == "pre_voter"
    await promoted(group, leader, new)
    others = [host for host in HOSTS if host != leader]
    group.crash(others[0])
    await group.upsert(row(1, "three of four"))
    await until(
        group,
        lambda: group.replica(SPARE).store.applied.index == group.replica(leader).store.applied.index,
        "the new member has applied all entries",
    )
    assert (await group.scan(SPARE)).num_rows == 300


@simulated()
async def test_a_replica_is_moved_to_another_server_under_writes(group: Group) -> None:
    leader = await group.leader()
    goes = next(host for host in HOSTS if host != leader)
    old, new = peer_of(group, goes), await spare(group)
    marked = m.MemberChange(MODIFY, Peer(old.uuid, old.address, replace=True))
    configuration = await change(group, leader, marked, adds(new))
    assert kinds(configuration)[SPARE] == "pre_voter"
    assert configuration.peer(old.uuid) == marked.peer
    written = 0
    while members(group, leader).peer(new.uuid) != Peer(new.uuid, new.address):
        written += 1
        await group.upsert(row(written))
    configuration = await change(group, leader, removes(old), index=members(group, leader).index)
    assert set(kinds(configuration)) == {*HOSTS, SPARE} - {goes}
    assert set(kinds(configuration).values()) == {"voter"}
    assert await group.get(written) == [row(written)]


@simulated()
async def test_a_repeated_request_is_answered_with_the_committed_configuration(group: Group) -> None:
    leader = await group.leader()
    new = await spare(group)
    first = await change(group, leader, adds(new), index=-1)
    assert await change(group, leader, adds(new), index=-1) == first, "its index is not checked any more"
    await promoted(group, leader, new)
    again = await change(group, leader, adds(new), index=-1)
    assert again == members(group, leader) and kinds(again)[SPARE] == "voter", "it has been promoted"
    gone = await change(group, leader, removes(new))
    assert await change(group, leader, removes(new), index=3) == gone


@simulated()
async def test_a_change_from_an_older_configuration_is_refused(group: Group) -> None:
    leader = await group.leader()
    new = await spare(group)
    with pytest.raises(errors.ConfigurationMoved) as refused:
        await change(group, leader, adds(new), index=17)
    assert refused.value.found == -1
    first = await change(group, leader, adds(new), index=-1)
    follower = next(host for host in HOSTS if host != leader)
    with pytest.raises(errors.ConfigurationMoved):
        await change(group, leader, removes(peer_of(group, follower)), index=-1)
    assert members(group, leader).index >= first.index
    assert follower in kinds(members(group, leader))


@simulated()
async def test_one_change_at_a_time_and_none_without_a_majority(group: Group) -> None:
    leader = await group.leader()
    followers = await group.followers()
    new = await spare(group)
    group.crash(*followers)
    with pytest.raises(errors.OutcomeUnknown, match="may be later"):
        await change(group, leader, adds(new), timeout_s=0.2)
    with pytest.raises((errors.AlreadyInProgress, errors.Unavailable)):
        await change(group, leader, removes(peer_of(group, leader)))
    assert members(group, leader).index == -1
    await group.restart(*followers)
    core = group.replica(leader := await group.leader()).core
    await until(
        group, lambda: core.configuration == core.committed_configuration, "the first change is decided"
    )
    assert len((await change(group, leader, adds(new))).peers) == 4


@simulated()
async def test_a_second_change_while_one_is_pending_is_in_progress(group: Group) -> None:
    leader = await group.leader()
    new = await spare(group)
    replica = group.replica(leader)
    pending = Configuration((*members(group, leader).peers, new), index=-1)
    server = group.server(leader)
    server.rounds.step(replica, replica.core.propose_configuration, server.world.clock.monotonic(), pending)
    with pytest.raises(errors.AlreadyInProgress):
        await change(group, leader, removes(peer_of(group, (await group.followers())[0])), index=-1)


@simulated()
async def test_a_change_that_breaks_a_rule_is_refused_with_that_rule(group: Group) -> None:
    leader = await group.leader()
    one, other = (peer_of(group, host) for host in await group.followers())
    own, new = peer_of(group, leader), await spare(group)
    elsewhere = Peer(one.uuid, "tablet-server/elsewhere")
    cases: list[tuple[str, tuple[m.MemberChange, ...]]] = [
        ("one at least", ()),
        ("once", (removes(one), adds(one))),
        ("not 'promote'", (m.MemberChange("promote", one),)),
        ("a member already", (adds(elsewhere),)),
        ("is no member", (m.MemberChange(MODIFY, new),)),
        ("cannot remove or demote itself", (removes(own),)),
        ("one change may add or remove one voter", (removes(one), removes(other))),
        ("replace is for voters", (adds(Peer(new.uuid, new.address, NON_VOTER, replace=True)),)),
    ]
    for rule, changes in cases:
        with pytest.raises(errors.InvalidArgument, match=rule):
            await change(group, leader, *changes)
    follower = (await group.followers())[0]
    with pytest.raises(errors.NotLeader):
        await change(group, follower, adds(new))
    with pytest.raises(errors.TabletNotFound):
        await change(group, SPARE, adds(new))
    request = m.ChangeMembersRequest("0" * 32, TABLET, (adds(new),))
    with pytest.raises(errors.WrongServer):
        await group.ask(leader, "change_members", request, m.MembersReply)
    assert members(group, leader).index == -1


@simulated()
async def test_a_leader_without_a_majority_does_not_report_the_committed_configuration(group: Group) -> None:
    leader = await group.leader()
    one = peer_of(group, (await group.followers())[0])
    present = m.MemberChange(MODIFY, one)
    assert (await change(group, leader, present)).index == -1
    group.crash(*await group.followers())
    await group.sleep(0.5)  # longer than the lease
    with pytest.raises((errors.Unavailable, errors.NotLeader)):
        await change(group, leader, present)


# -- forced configurations


async def force(group: Group, host: str, keep: list[str], **changes: Any) -> Configuration:
    fields: dict[str, Any] = {
        "dest_uuid": group.uuid(host),
        "tablet": TABLET,
        "keep": tuple(keep),
        "configuration_index": members(group, host).index,
        "reason": "the rack burnt",
    }
    request = m.UnsafeChangeRequest(**{**fields, **changes})
    reply: m.MembersReply = await group.ask(host, "unsafe_change", request, m.MembersReply, 20.0)
    return reply.configuration


def uuids(group: Group, *hosts: str) -> list[str]:
    return [group.uuid(host) for host in hosts]


@simulated()
async def test_a_single_survivor_serves_alone_and_gets_members_again(group: Group) -> None:
    await group.upsert(row(1, "kept"))
    await group.settle()
    survivor, *lost = HOSTS
    group.crash(*lost)
    await group.sleep(3.0)
    configuration = await force(group, survivor, uuids(group, survivor))
    assert kinds(configuration) == {survivor: "voter"} and configuration.unsafe == 1
    assert await group.get(1) == [row(1, "kept")]
    new = await spare(group)
    with pytest.raises(errors.ConfigurationMoved, match="forced, 1 so far"):
        await change(group, survivor, adds(new), index=configuration.index)
    await change(group, survivor, adds(new), index=configuration.index, unsafe=1)
    await promoted(group, survivor, new)
    assert members(group, survivor).unsafe == 1, "the forced epoch stays"
    await group.restart(survivor)
    await until(
        group, lambda: len(members(group, survivor).peers) == 2, "the survivor has its configuration again"
    )
    assert members(group, survivor).unsafe == 1


@simulated()
async def test_two_of_five_survivors_are_led_by_the_one_with_the_longest_log(group: Group) -> None:
    leader = await group.leader()
    for host in ("host-d", "host-e"):
        new = await spare(group, host)
        await change(group, leader, adds(new))
        await promoted(group, leader, new)
    one, other = await group.followers()
    await group.settle()
    group.crash(other)
    await group.upsert(row(1, "not everywhere"))
    await until(
        group,
        lambda: group.replica(one).store.applied == group.replica(leader).store.applied,
        "one of the survivors has it",
    )
    group.crash(leader, "host-d", "host-e")
    await group.restart(other)
    await group.sleep(3.0)
    keep = uuids(group, one, other)
    with pytest.raises(errors.InvalidArgument, match="holds more"):
        await force(group, other, keep)
    configuration = await force(group, one, keep)
    assert kinds(configuration) == {one: "voter", other: "voter"}
    assert await group.get(1) == [row(1, "not everywhere")]


@simulated()
async def test_forcing_is_refused_if_a_kept_member_gets_heartbeats_of_a_leader(group: Group) -> None:
    leader, one, other = await group.roles()
    group.cut(one, leader)
    await group.sleep(3.0)
    with pytest.raises(errors.Unavailable, match="contact with a leader of tablet"):
        await force(group, one, uuids(group, one, other))
    assert members(group, one).unsafe == 0 and await group.leader() == leader


@simulated()
async def test_forcing_checks_the_configuration_again_after_all_kept_members_answered(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = tablet_members._ask

    async def ask(world: Any, identity: Any, replica: Replica, peer: Peer) -> int:
        term = await original(world, identity, replica, peer)
        core = replica.core
        core.committed_configuration = replace(core.committed_configuration, index=core.commit_index)
        return term

    monkeypatch.setattr(tablet_members, "_ask", ask)
    leader, one, other = await group.roles()
    await group.upsert(row(1))
    await group.settle()
    group.crash(leader)
    group.cut(one, other)
    await group.sleep(3.0)
    group.heal()
    with pytest.raises(errors.ConfigurationMoved, match="check again"):
        await force(group, one, uuids(group, one, other))


@simulated()
async def test_invalid_requests_to_force_are_refused(group: Group) -> None:
    leader, one, other = await group.roles()
    with pytest.raises(errors.Unavailable, match="leader"):
        await force(group, one, uuids(group, one))
    with pytest.raises(errors.Unavailable, match="leader"):
        await force(group, one, uuids(group, one, other))
    with pytest.raises(errors.Unavailable, match="leads"):
        await force(group, leader, uuids(group, leader))
    before = group.replica(one).core.hard_state
    group.crash(leader, other)
    await group.sleep(3.0)
    gone = group.cluster.role(address(one)).replicas[TABLET].core.configuration
    cases: list[tuple[type[Exception], str, list[str], dict[str, Any]]] = [
        (errors.ConfigurationMoved, "check again", uuids(group, one), {"configuration_index": 5}),
        (errors.ConfigurationMoved, "forced, 1 so", uuids(group, one), {"configuration_unsafe": 1}),
        (errors.InvalidArgument, "reason", uuids(group, one), {"reason": ""}),
        (errors.InvalidArgument, "no members", [*uuids(group, one), "f" * 32], {}),
        (errors.InvalidArgument, "one of the voters", [], {}),
        (errors.InvalidArgument, "nothing to force", [peer.uuid for peer in gone.peers], {}),
        (
            errors.Unavailable,
            "does not answer",
            [peer.uuid for peer in gone.peers if peer.address != address(leader)],
            {},
        ),
        (errors.WrongServer, "was for", uuids(group, one), {"dest_uuid": "0" * 32}),
    ]
    for kind, rule, keep, changes in cases:
        with pytest.raises(kind, match=rule):
            await force(group, one, keep, **changes)
    assert members(group, one).index == -1 and members(group, one).unsafe == 0
    assert group.replica(one).core.term == before.term


@simulated()
async def test_entries_of_a_tombstone_are_given_up_only_explicitly(group: Group) -> None:
    """It votes for no candidate that lacks its acknowledged entries, and no other member has them any more."""
    await group.upsert(row(1, "everywhere"))
    await group.settle()
    leader, one, other = await group.roles()
    group.crash(one)
    await group.upsert(row(2, "on two"))
    group.cut(leader, other)
    await entomb(group, other)
    group.crash(leader)
    await group.restart(one)
    await group.sleep(6.0)
    assert not group.replica(one).leads
    with pytest.raises(errors.InvalidArgument, match="holds more"):
        await force(group, one, uuids(group, one, other))
    assert (await force(group, one, uuids(group, one))).unsafe == 1
    assert await group.get(1, 2) == [row(1, "everywhere"), None]
