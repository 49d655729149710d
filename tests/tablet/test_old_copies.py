"""A server on an older copy of its directory has forgotten its promises: other servers recognise it, and it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.incarnations import RAISED_BY
from ebla.actors.messages import peers
from ebla.actors.messages.raft import VoteRequest
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.errors import OldCopy
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, TABLET, Group, address, row, simulated

OTHERS, HOST = HOSTS[:2], HOSTS[2]
OFTEN: dict[str, Any] = {"seqno_s": 1.0}


async def outgrown(group: Group) -> DurableState:
    """Return a copy of HOST's directory; the other servers have seen a higher number of HOST since."""
    await group.upsert(row(1))
    await group.settle()
    copy = group.disk(HOST).copy()
    await until_known(group, copy.seqno + RAISED_BY)
    await group.upsert(row(2))
    await group.settle()
    return copy


async def until_known(group: Group, seqno: int) -> None:
    """Wait until the other servers know the number; leadership moves, so that all servers exchange messages."""
    uuid = group.uuid(HOST)
    for _ in range(40):
        if all(group.server(host).identity.others.known(uuid).seqno >= seqno for host in OTHERS):
            return
        await group.lead(HOST if await group.leader() != HOST else OTHERS[0])
        await group.sleep(1.0)
    raise AssertionError("not every server has learnt the number within 40 s")


def restore(group: Group, copy: DurableState) -> None:
    group.cluster.expect_failure(address(HOST))
    if group.alive(HOST):
        group.crash(HOST)
    group.cluster.put_disk(address(HOST), copy)
    group.cluster.launch(address(HOST), group.make(HOST))


async def ended(group: Group) -> None:
    await until(group, lambda: not group.alive(HOST), "the server ends")


@pytest.mark.parametrize("restarted", [False, True])
@simulated(**OFTEN)
async def test_a_server_on_an_old_copy_ends_and_its_directory_is_given_up(
    group: Group, restarted: bool
) -> None:
    copy = await outgrown(group)
    if restarted:  # the other servers' knowledge is on their disks
        await group.sleep(1.0)
        await group.restart(*OTHERS)
    restore(group, copy)
    await ended(group)
    assert "set it aside and start again" in copy.given_up
    with pytest.raises(OldCopy, match="was given up"):
        await group.cluster.start(address(HOST), group.make(HOST))
    assert await group.get(1, 2) == [row(1), row(2)]
    group.cluster.put_disk(address(HOST), DurableState())
    await group.cluster.start(address(HOST), group.make(HOST))
    await group.upsert(row(3))


@simulated(**OFTEN)
async def test_the_request_of_an_old_copy_is_refused_with_both_numbers_and_changes_nothing(
    group: Group,
) -> None:
    await outgrown(group)
    voter = OTHERS[0]
    known = group.server(voter).identity.others.known(group.uuid(HOST))
    core = group.replica(voter).core
    before = core.hard_state
    request = VoteRequest(core.term + 5, known.uuid, core.last_index + 9, core.term + 4, False, True)

    async def ask(shown: m.ServerInstance) -> peers.EnvelopeReply:
        envelope = peers.Envelope(shown, group.server(voter).instance, ((TABLET, request),))
        return await group.ask(voter, "replicate", envelope, peers.EnvelopeReply)

    for shown in (known.seqno, known.seqno - 7):
        with pytest.raises(OldCopy) as refused:
            await ask(m.ServerInstance(known.uuid, shown, "another start"))
        error = refused.value
        assert (error.server, error.shown, error.known) == (known.uuid, shown, known.seqno)
        assert str(shown) in error.message and str(known.seqno) in error.message
    assert core.hard_state == before
    assert (await ask(msgspec.structs.replace(known, seqno=known.seqno - 1))).answers[0] is not None
    assert core.hard_state.term == before.term + 5, "a late message still counts"


@simulated(**OFTEN)
async def test_the_answer_of_an_old_copy_is_no_acknowledgement(group: Group) -> None:
    await outgrown(group)
    await group.lead(OTHERS[0])
    await group.settle()
    # The copy has the whole log, so that it could acknowledge. It does not learn that it is old, so that it answers.
    copy = group.disk(HOST).copy()
    copy.seqno = 1
    leader = group.server(OTHERS[0])
    leader.identity.envelope = lambda dest, requests: peers.Envelope(
        leader.instance, m.ServerInstance(dest, 0, ""), requests
    )
    group.crash(OTHERS[1])
    restore(group, copy)
    batch = group.batch(m.UPSERT, [row(3)], group.next_sequence())
    assert isinstance(await group.write_once(OTHERS[0], batch, 0.3), errors.OutcomeUnknown)
    await group.restart(OTHERS[1])
    await group.write_bytes(batch)
    assert await group.get(1, 2, 3) == [row(1), row(2), row(3)]


@simulated(**OFTEN)
async def test_an_isolated_old_copy_does_not_reach_the_known_number(group: Group) -> None:
    copy = await outgrown(group)
    group.isolate(HOST)
    restore(group, copy)
    await group.sleep(20.0)
    for _ in range(3):
        group.crash(HOST)
        group.cluster.launch(address(HOST), group.make(HOST))
        await group.sleep(10.0)
    group.cluster.network.rejoin(address(HOST))
    await ended(group)
    assert copy.given_up


@simulated(**OFTEN)
async def test_a_restarted_server_is_accepted_and_its_number_grows_further(group: Group) -> None:
    for _ in range(3):
        before = group.server(HOST).instance
        await group.restart(HOST)
        after = group.server(HOST).instance
        assert after.uuid == before.uuid and after.start != before.start and after.seqno > before.seqno
        grown = after.seqno + 3 * RAISED_BY
        await until(group, lambda grown=grown: group.server(HOST).instance.seqno >= grown, "the number grows")
        assert group.disk(HOST).seqno >= group.server(HOST).instance.seqno
    assert group.cluster.failures == []


@simulated(**OFTEN)
async def test_a_full_disk_raises_no_number_and_ends_no_server(group: Group) -> None:
    await group.upsert(row(1))
    await group.sleep(2.0)
    state = group.disk(HOST)
    state.fill()
    await group.sleep(2.0)
    held = group.server(HOST).instance.seqno
    await group.sleep(5.0)
    assert group.server(HOST).instance.seqno == held == state.seqno
    state.free()
    await group.sleep(5.0)
    assert group.server(HOST).instance.seqno > held


@simulated(**OFTEN)
async def test_a_server_that_lost_its_directorys_lock_ends_and_leaves_the_directory_alone(
    group: Group,
) -> None:
    state = group.disk(HOST)
    server = group.server(HOST)
    group.cluster.expect_failure(address(HOST))
    state.holder = None  # a successor holds the directory's lock
    shown = server.instance
    later = m.ServerInstance(shown.uuid, shown.seqno + 1, "a successor's")
    envelope = peers.Envelope(group.server(OTHERS[0]).instance, later, ())
    with pytest.raises((OldCopy, errors.OutcomeUnknown)):
        await group.ask(HOST, "replicate", envelope, peers.EnvelopeReply)
    await ended(group)
    assert isinstance(group.cluster.failures[-1].error, OldCopy)
    assert state.given_up is None


@simulated(**OFTEN)
async def test_a_damaged_incarnation_record_is_forgotten_alone(group: Group) -> None:
    await outgrown(group)
    await group.sleep(1.0)
    state, uuid = group.disk(OTHERS[0]), group.uuid(HOST)
    before = {known.uuid for known in group.server(OTHERS[0]).identity.others.all()}
    group.crash_all()
    state.rot("consensus-meta", "incarnations", uuid.encode())
    await group.restart(OTHERS[0])
    assert {known.uuid for known in group.server(OTHERS[0]).identity.others.all()} == before - {uuid}
    await group.restart(*HOSTS[1:])
    await until_known(group, RAISED_BY)


@simulated(seqno_s=1000.0)
async def test_the_incarnations_of_other_servers_are_written_once_for_each_number(group: Group) -> None:
    await group.upsert(row(1))
    await group.sleep(5.0)
    server = group.server(OTHERS[0])
    saved: list[int] = []
    commit = server.identity.others.store.environment.commit

    async def counted(batch: Any) -> None:
        saved.extend(1 for change in batch if change.database == "incarnations")
        await commit(batch)

    server.identity.others.store.environment.commit = counted
    await asyncio.sleep(30.0)
    assert saved == []
