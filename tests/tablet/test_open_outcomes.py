"""A request that may still be carried out ends in OutcomeUnknown: Unavailable means that nothing is or will be changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.copy.job import Job
from ebla.storage.errors import Corruption
from ebla.storage.logs.entries import NO_OP
from tests.tablet.copies import copying, until
from tests.tablet.harness import HOSTS, TABLET, Group, held, row, simulated
from tests.tablet.test_alterations import alteration
from tests.tablet.test_members import SPARE, adds, change, kinds, members, spare


async def is_open(asked: Awaitable[Any], words: str) -> None:
    with pytest.raises(errors.OutcomeUnknown, match=words) as unknown:
        await asked
    assert unknown.value.possibly_applied


@simulated()
async def test_the_outcome_of_an_alteration_not_committed_in_time_is_unknown(group: Group) -> None:
    await group.upsert(row(1))
    leader = await group.leader()
    replica = group.replica(leader)
    apply = replica.apply
    replica.apply = lambda bytes_max: False  # type: ignore[method-assign]
    request = m.AlterTabletRequest(group.uuid(leader), TABLET, alteration(1))
    await is_open(group.ask(leader, "alter_tablet", request, m.Empty, 10.0), "may be later")
    replica.apply = apply  # type: ignore[method-assign]
    group.server(leader).rounds.touch(replica)
    await until(group, lambda: replica.rows.schema.version == 1, "the change is carried out")


@simulated()
async def test_the_outcome_of_a_change_whose_replica_fails_meanwhile_is_unknown(group: Group) -> None:
    await group.upsert(row(1))
    leader = await group.leader()
    new = await spare(group)
    replica = group.replica(leader)
    replica.apply = lambda bytes_max: False  # type: ignore[method-assign]
    asked = asyncio.ensure_future(change(group, leader, adds(new)))
    await until(
        group, lambda: replica.core.configuration.peer(new.uuid) is not None, "the change is in the log"
    )
    await group.sleep(1.0)
    replica.fail(Corruption("for a test"))
    await is_open(asked, "is failed")
    others = [host for host in HOSTS if host != leader]
    await until(
        group,
        lambda: all(SPARE in kinds(members(group, host)) for host in others),
        "the change is carried out",
    )


@simulated()
async def test_the_outcome_of_a_change_that_another_leaders_entries_replaced_is_unknown(group: Group) -> None:
    new = await spare(group)
    await group.upsert(row(1))
    leader, followers = await group.leader(), await group.followers()
    group.cut(leader, *followers)
    asked = asyncio.ensure_future(change(group, leader, adds(new), timeout_s=9.0))
    await group.sleep(4.0)
    group.heal()
    await is_open(asked, "another replica leads")


@simulated()
async def test_a_copy_on_a_hanging_disk_is_cancelled_when_the_disk_answers(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, answers = held(Job, "_finish_data", monkeypatch.setattr)
    _, target, _ = await copying(group, 50)
    await until(group, hangs.is_set, "the disk hangs")
    await is_open(group.cancel_copy(target), "is to end")
    answers.set()
    lifecycle = group.server(target).lifecycle
    await until(group, lambda: lifecycle.state_of(TABLET) != m.COPYING, "the copy has ended")


@simulated()
async def test_the_outcome_of_a_hand_over_that_is_not_done_in_time_is_unknown(group: Group) -> None:
    await group.upsert(row(1))
    leader = await group.leader()
    replica = group.replica(leader)
    replica.propose(group.cluster.loop.time(), NO_OP, b"")  # the successor does not have it yet
    replica.absorb()
    request = m.StepDownRequest(TABLET, None, 0.0)
    await is_open(group.ask(leader, "step_down", request, m.StepDownReply), "may yet")
    await until(group, lambda: replica.core.role != "leader", "the leader hands over")
