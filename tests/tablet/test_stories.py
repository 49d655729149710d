"""Internal errors of a replica carry its story: the last events of its core."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import AsyncMock

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages.stream import AppendRequest
from ebla.actors.tablet.engine.core import LEADER
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import Dispatcher, decode_answer, encode
from ebla.storage.errors import Corruption
from tests.tablet.harness import TABLET, Group, row, simulated


async def leading(group: Group) -> tuple[Any, Replica]:
    await group.write(m.UPSERT, [row(1)])
    server = group.server(await group.leader())
    return server, server.replicas[TABLET]


@simulated()
async def test_a_broken_invariant_carries_the_story(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
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


@simulated()
async def test_a_refusal_carries_no_story(group: Group) -> None:
    server, replica = await leading(group)
    with pytest.raises(errors.EblaError) as caught:
        server.rounds.step(replica, replica.core.step_down, server.world.clock.monotonic(), "no member")
    assert not hasattr(caught.value, "__notes__")


@simulated()
async def test_a_replica_that_fails_logs_its_story_once(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    _, replica = await leading(group)
    with caplog.at_level(logging.ERROR, logger="ebla.actors.tablet.engine.replica"):
        for _ in range(2):
            replica.fail(Corruption("rotten"))
    assert caplog.text.count("rotten") == 1 and f"{LEADER}: elected" in caplog.text


async def broken(*_: Any) -> None:
    raise AssertionError("broken")


@pytest.mark.parametrize(
    ("method", "ask"),
    [
        ("read", m.ReadRequest(0, (m.TabletKeys(TABLET, []),))),
        ("write", m.WriteRequest((m.TabletWrite(TABLET, b""),), 1.0)),
        ("read_index", m.TabletRequest(TABLET, 0)),
    ],
)
@simulated()
async def test_a_defect_in_a_verb_carries_the_story_of_its_tablet(
    group: Group, method: str, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = await leading(group)
    monkeypatch.setattr(TabletServer, method, broken)
    with pytest.raises(AssertionError, match="broken") as caught:
        await server.perform(method, ask)
    (note,) = caught.value.__notes__
    assert TABLET in note and f"{LEADER}: elected" in note


@simulated()
async def test_a_defect_in_an_answer_to_peers_carries_the_story(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, peer, _ = await group.roles()
    core = group.replica(leader).core
    request = AppendRequest(core.term, core.me, 0, 0, (), 0)
    envelope = group.server(leader).identity.envelope(group.uuid(peer), ((TABLET, request),))
    monkeypatch.setattr(RaftCore, "answer", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError) as caught:
        await group.server(peer).perform("replicate", envelope)
    monkeypatch.undo()
    (note,) = caught.value.__notes__
    assert TABLET in note
