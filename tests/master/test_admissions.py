"""The new nodes of a grown journal begin to count, each once, also after the loss of a directory."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from ebla.actors.errors import AlreadyPresent, NetworkError, Unavailable
from ebla.actors.journal import messages as jm
from ebla.actors.journal.errors import LeaseHeld, OutOfSync
from ebla.actors.journal.node import growth
from ebla.actors.journal.node.rejoin import rejoin_journal
from ebla.actors.journal.node.rules import View
from ebla.actors.journal.records import Admission, State
from ebla.actors.journal.writer.session import format_journal
from ebla.actors.master.messages import HandOverReply, HandOverRequest
from ebla.actors.messages import Empty
from ebla.chaos.simulation.masters import maker_of
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.errors import InvalidArgument
from tests.master.growing import (
    GROWN,
    HELD_S,
    NEW,
    NODES,
    ask_to_join,
    counting,
    create,
    empty,
    grow,
    grow_at_last,
    judged,
    make_node,
    node,
    only_node,
    opened,
    run,
)
from tests.master.stage import MASTER, Stage
from tests.staged import staged


@staged(run)
async def test_a_late_admission_does_not_let_a_node_count_that_lost_its_directory_since(stage: Stage) -> None:
    await opened(stage)
    tokens: list[str] = []

    async def remember() -> None:
        tokens.append(node(stage, NEW[0]).view.state.token)

    stage.points.acts["journal.grow.before_commit"] = remember
    await grow(stage)
    await counting(stage)
    await create(stage, "acknowledged since")
    stage.cluster.crash(NEW[0])
    stage.cluster.put_disk(NEW[0], DurableState())
    await stage.cluster.start(NEW[0], make_node)
    await rejoin_journal(stage.client, replace(stage.group.journal, journal=GROWN, nodes=NODES), NEW[0])
    again = node(stage, NEW[0]).view.state.token
    assert again and tokens and again != tokens[0]
    late = growth.admission(only_node(stage).view, GROWN, tokens[0], MASTER)
    await stage.client.network.call(NEW[0], "admit", late, jm.Done, 1.0)
    assert node(stage, NEW[0]).view.state.token == again


@pytest.mark.parametrize("late", [None, "granted", "restarted"])
@staged(run)
async def test_an_admitted_node_helps_the_old_only_node_unless_a_later_writer_was_granted_the_lease(
    stage: Stage, late: str | None
) -> None:
    await opened(stage)
    request = jm.RejoinRequest(GROWN, NODES)
    ask = stage.client.network.call
    await stage.until(lambda: stage.cluster.role(MASTER).active_term is not None)
    while (joined := await ask(NEW[0], "join", request, jm.Joining, 1.0)).end < 1:
        await asyncio.sleep(0.1)
    if late:
        renewed = jm.RenewRequest(GROWN, 99, jm.Claim("master/1", "another", int(HELD_S * 1000)))
        await ask(NEW[0], "renew_lease", renewed, jm.Done, 1.0)
    if late == "restarted":
        stage.cluster.crash(NEW[0])
        await stage.cluster.restart(NEW[0])
    state = only_node(stage).view.state
    admit = jm.AdmitRequest(GROWN, joined.token, state.promised, 99, 1, 0, 0, int(HELD_S * 1000), MASTER)
    await ask(NEW[0], "admit", admit, jm.Done, 1.0)
    lease = node(stage, NEW[0]).lease
    claim = jm.Claim(MASTER, "mine", int(HELD_S * 1000))
    if late:
        with pytest.raises(LeaseHeld):
            lease.require_free(claim)
    else:
        lease.require_free(claim)
        with pytest.raises(LeaseHeld):
            lease.require_free(jm.Claim("master/1", "another", int(HELD_S * 1000)))


@pytest.mark.parametrize("point", ["journal.grow.after_commit", "journal.asks.before_commit"])
@staged(run)
async def test_new_nodes_that_lose_their_directories_before_they_are_asked_to_count_join_again(
    stage: Stage, point: str
) -> None:
    await opened(stage)
    stage.crash_at(point)
    with pytest.raises(NetworkError):
        await grow(stage)
    tokens = [node(stage, each).view.state.token for each in NEW]
    await empty(stage, *NEW)
    await stage.cluster.restart(MASTER)
    await grow_at_last(stage)
    await counting(stage)
    assert [each.token for each in only_node(stage).view.state.admits] not in tokens
    assert await stage.exists("table 3")
    await create(stage, "later")
    await stage.until(lambda: not only_node(stage).view.state.admits)


@staged(run)
async def test_a_new_node_that_loses_its_directory_after_it_was_asked_to_count_must_rejoin(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await opened(stage)
    late = jm.Stamp(GROWN, 99, 1, 0)
    stage.crash_at("journal.asks.after_commit", *NEW)
    growing = asyncio.ensure_future(grow_at_last(stage))
    await stage.until(lambda: stage.points.passed.get("journal.asks.after_commit", 0) > 0)
    asked = next(each.node for each in only_node(stage).view.state.admits if each.asked)
    other = next(each for each in NEW if each != asked)
    await empty(stage, asked)
    await asyncio.sleep(3.0)
    assert not stage.cluster.role(asked).journals, "it may have counted, so it must not join again"
    missing = (await judged(stage))[asked]
    assert missing.status == "MISSING" and "before it was admitted to the journal" in missing.error
    assert missing.error.endswith(f"`ebla journal rejoin {asked}`")
    assert (await ask_to_join(stage, asked)).token, "a request to join that comes late"
    with pytest.raises(OutOfSync, match="does not count yet"):
        await stage.client.network.call(asked, "start_segment", jm.StartSegment(late, 1, 0), jm.Done, 1.0)
    with pytest.raises(OutOfSync, match="does not count yet"):
        await stage.client.network.call(
            asked, "journal_heartbeat", jm.Heartbeat(late), jm.HeartbeatAnswer, 1.0
        )
    await asyncio.sleep(3.0)
    assert node(stage, asked).view.state.joining
    assert any(f"ebla journal rejoin {asked}" in record.getMessage() for record in caplog.records)
    health = await judged(stage)
    assert health[asked].status == "REJOINING"
    assert "counts when it has been admitted" in health[asked].error
    assert health[asked].error.endswith(f"if it stays so, `ebla journal rejoin {asked}`")
    await stage.cluster.restart(other)
    await growing
    await create(stage, "with two of three")
    await rejoin_journal(stage.client, replace(stage.group.journal, journal=GROWN, nodes=NODES), asked)
    assert not node(stage, asked).view.state.joining
    assert (await judged(stage))[asked].error.startswith("it lost its directory")
    await counting(stage)
    await stage.until(lambda: not only_node(stage).view.state.admits)


@staged(run)
async def test_a_pending_admission_is_shown_and_not_logged_again_and_again(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await opened(stage)
    stage.crash_at("journal.grow.after_commit", NEW[0])
    await grow(stage)
    caplog.set_level("INFO")
    await asyncio.sleep(10.0)
    logged = [each for each in caplog.messages if f"cannot admit {NEW[0]}" in each]
    assert 1 <= len(logged) <= 2, logged  # it is not delivered, or its outcome is unknown
    status = await stage.client.network.call(MASTER, "journal_status", Empty(), jm.JournalNodeStatus, 1.0)
    assert status.journals[0].admits == (NEW[0],)


@staged(run)
async def test_a_node_that_was_admitted_meanwhile_does_not_rejoin(stage: Stage) -> None:
    await opened(stage)
    await grow(stage)
    await counting(stage)
    counts = node(stage, NEW[0])
    promised = counts.view.state.promised
    await counts.rejoin(State(token="learned before the admission"))
    assert (counts.view.state.token, counts.view.state.promised) == ("", promised)


@staged(run)
async def test_a_node_does_not_join_a_journal_that_does_not_name_it(stage: Stage) -> None:
    await opened(stage)
    with pytest.raises(InvalidArgument, match="journal/1 is not one of the journal's nodes"):
        await ask_to_join(stage, NEW[0], (MASTER, "journal/3", "journal/4"))


@staged(run)
async def test_a_node_that_joins_does_not_join_with_another_set_of_nodes(stage: Stage) -> None:
    await opened(stage)
    token = (await ask_to_join(stage, NEW[0])).token
    with pytest.raises(AlreadyPresent, match="another journal catalog; move its directory aside"):
        await ask_to_join(stage, NEW[0], (MASTER, NEW[0], "journal/3"))
    assert (await ask_to_join(stage, NEW[0])).token == token


@pytest.mark.parametrize(("promised", "helps"), [(3, MASTER), (4, "")])
def test_an_admission_helps_the_old_only_node_until_it_has_promised_an_epoch_of_the_new_set(
    promised: int, helps: str
) -> None:
    view = View(GROWN, State(promised=promised, grown_epoch=3), MASTER)
    assert growth.admission(view, GROWN, "token", MASTER).helps == helps


def test_a_node_that_lacks_edits_of_the_old_set_is_not_asked_to_count() -> None:
    view = View(GROWN, State(grown=5, admits=(Admission(NEW[0], "token"),)), MASTER)
    with pytest.raises(Unavailable, match="up to edit 4 of 5; wait"):
        growth.asking(view, NEW[0], jm.Joining(4, 0, "token"))
    (asked,) = growth.asking(view, NEW[0], jm.Joining(5, 0, "token")).state.admits
    assert asked == Admission(NEW[0], "token", asked=True)


@staged(run)
async def test_a_node_fetches_several_journals_at_once_to_join_them(stage: Stage) -> None:
    await opened(stage)
    asked: list[str] = []

    async def ask(journal, source) -> None:
        asked.append(journal.form.journal.name)
        await asyncio.sleep(5.0)

    stage.cluster.role(NEW[0]).sync.ask = ask
    for name in ("one", "two", "one", "two"):
        request = jm.RejoinRequest(jm.JournalId(name, "id", 2), NODES)
        await stage.client.network.call(NEW[0], "join", request, jm.Joining, 1.0)
        await asyncio.sleep(0.1)
    assert asked == ["one", "two"]


def test_an_admission_to_a_later_epoch_resets_the_serial() -> None:
    state = State(promised=1, serial=7, token="token", joining=True)
    view = View(GROWN, state, NEW[0])
    for promised, serial in ((1, 7), (2, 0)):
        request = jm.AdmitRequest(GROWN, "token", promised, 1, 0, 0, 0, 0, "")
        assert growth.admit_joining(view, request).state.serial == serial


@staged(run)
async def test_the_quiet_period_is_not_skipped_with_two_masters(stage: Stage) -> None:
    both = replace(stage.group, masters=(MASTER, "master/other"))
    roles = [await stage.cluster.start(each, maker_of(both)) for each in both.masters]
    await format_journal(stage.client, both.journal)
    await stage.until(
        lambda: any(role.active_term is not None and role.active_term.serves() for role in roles)
    )
    if roles[0].active_term is not None:
        await stage.until(lambda: roles[1].standby.caught_up)
        await stage.ask("hand_over", HandOverRequest(), HandOverReply, 20.0)
    assert roles[1].active_term.serves()
    stage.cluster.crash(MASTER)
    await stage.cluster.restart(MASTER)
    for _ in range(400):
        serving = [stage.cluster.role(each).active_term for each in both.masters]
        assert sum(active_term is not None and active_term.serves() for active_term in serving) <= 1
        await asyncio.sleep(0.005)
