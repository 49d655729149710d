"""What may still be carried out is never refused: Unavailable says that nothing was changed, and nothing will be."""

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
from tests.tablet.harness import HOSTS, TABLET, Group, address, row, simulate
from tests.tablet.test_alterations import alteration
from tests.tablet.test_members import SPARE, adds, change, kinds, members, spare


async def is_open(asked: Awaitable[Any], words: str) -> None:
    with pytest.raises(errors.OutcomeUnknown, match=words) as told:
        await asked
    assert told.value.possibly_applied


def test_an_alteration_that_is_not_committed_in_time_may_be_carried_out_later() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        leader = await group.leader()
        replica = group.replica(leader)
        apply = replica.apply
        replica.apply = lambda: False  # type: ignore[method-assign]
        request = m.AlterTabletRequest(group.server(leader).instance.uuid, TABLET, alteration(1))
        await is_open(group.ask(leader, "alter_tablet", request, m.Empty, 10.0), "may be later")
        replica.apply = apply  # type: ignore[method-assign]
        group.server(leader).rounds.touch(replica)
        await until(group, lambda: replica.rows.schema.version == 1, "it is carried out")

    simulate(scenario)


def test_a_change_of_members_whose_replica_fails_meanwhile_may_be_carried_out_by_the_others() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        leader = await group.leader()
        new = await spare(group)
        replica = group.replica(leader)
        replica.apply = lambda: False  # type: ignore[method-assign]
        asked = asyncio.ensure_future(change(group, leader, adds(new)))
        await until(group, lambda: replica.core.configuration.peer(new.uuid) is not None, "it is in the log")
        await group.sleep(1.0)
        replica.fail(Corruption("for a test"))
        await is_open(asked, "is failed")
        others = [host for host in HOSTS if host != leader]
        await until(
            group,
            lambda: all(SPARE in kinds(members(group, host)) for host in others),
            "it is carried out",
        )

    simulate(scenario)


def test_a_change_of_members_that_another_leaders_entries_replaced_is_not_said_to_be_refused() -> None:
    async def scenario(group: Group) -> None:
        new = await spare(group)
        await group.upsert(row(1))
        leader, followers = await group.leader(), await group.followers()
        for host in followers:
            group.cluster.network.cut(address(leader), address(host))
        asked = asyncio.ensure_future(change(group, leader, adds(new), timeout_s=9.0))
        await group.sleep(4.0)
        group.cluster.network.heal()
        await is_open(asked, "another replica leads")

    simulate(scenario)


def test_a_copy_whose_disk_hangs_is_cancelled_when_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, answers, honest = asyncio.Event(), asyncio.Event(), Job._finish_data

    async def finish(self: Job) -> None:
        hangs.set()
        await answers.wait()
        await honest(self)

    monkeypatch.setattr(Job, "_finish_data", finish)

    async def scenario(group: Group) -> None:
        _, target, _ = await copying(group, 50)
        await until(group, hangs.is_set, "its disk hangs")
        cancel = m.CancelCopyRequest(group.server(target).instance.uuid, TABLET)
        await is_open(group.ask(target, "cancel_copy", cancel, m.Empty, 30.0), "is to end")
        answers.set()
        lifecycle = group.server(target).lifecycle
        await until(group, lambda: lifecycle.state_of(TABLET) != m.COPYING, "it has ended")

    simulate(scenario)


def test_a_leader_that_may_still_hand_over_is_not_said_to_lead_on() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        leader = await group.leader()
        replica = group.replica(leader)
        replica.propose(group.cluster.loop.time(), NO_OP, b"")  # which its successor is still to get
        replica.absorb()
        request = m.StepDownRequest(TABLET, None, 0.0)
        await is_open(group.ask(leader, "step_down", request, m.StepDownReply), "may yet")
        await until(group, lambda: replica.core.role != "leader", "it hands over")

    simulate(scenario)
