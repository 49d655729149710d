"""Internal errors of a replica carry its story: the last events of its core."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import AsyncMock

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.engine.core import LEADER
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.world import Dispatcher, decode_answer, encode
from ebla.storage.errors import Corruption
from tests.tablet.harness import TABLET, Group, row, simulated


async def leading(group: Group) -> tuple[Any, Replica]:
    await group.write(m.UPSERT, [row(1)])
    server = group.server(await group.leader())
    return server, server.replicas[TABLET]


def test_a_broken_invariant_carries_the_story(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(group: Group) -> None:
        server, replica = await leading(group)
        monkeypatch.setattr(RaftCore, "last_index", -1)
        with pytest.raises(AssertionError, match="log and core have the same entries") as caught:
            server.rounds.step(replica, replica.core.tick, server.world.clock.monotonic())
        (note,) = caught.value.__notes__
        assert TABLET in note and f"{LEADER}: elected" in note
        monkeypatch.setattr(server, "perform", AsyncMock(side_effect=caught.value))
        answer = await Dispatcher(server, lambda method, error: None).answer("status", encode(m.Empty()))
        with pytest.raises(errors.Internal) as sent:
            decode_answer(answer, m.Empty)
        assert sent.value.message.endswith(note)
        monkeypatch.undo()

    simulated()(act)()


def test_a_refusal_carries_no_story() -> None:
    async def act(group: Group) -> None:
        server, replica = await leading(group)
        with pytest.raises(errors.EblaError) as caught:
            server.rounds.step(replica, replica.core.step_down, server.world.clock.monotonic(), "nobody")
        assert not hasattr(caught.value, "__notes__")

    simulated()(act)()


def test_a_replica_that_fails_logs_its_story_once(caplog: pytest.LogCaptureFixture) -> None:
    async def act(group: Group) -> None:
        _, replica = await leading(group)
        for _ in range(2):
            replica.fail(Corruption("rotten"))

    with caplog.at_level(logging.ERROR, logger="ebla.actors.tablet.engine.replica"):
        simulated()(act)()
    assert caplog.text.count("rotten") == 1 and f"{LEADER}: elected" in caplog.text
