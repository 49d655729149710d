"""`ebla nodes decommission`, and a lost host with ledgers: what commands say about them."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.repairs import LOST, Note, Repairs
from ebla.errors import TimedOut
from ebla.health import ledgers
from ebla.placement import launch
from tests.cli.stage import Cli, LogStage, repaired, start_with_logs

HOST = "host-d"  # it has a ledger store and no tablet server
STORE = f"ledger-store/{HOST}"


async def on_four(stage: LogStage) -> None:
    """A log of which every store has a copy: no other one can take over."""
    await repaired(stage)
    await stage.log(ensemble=4, write_quorum=4, ack_quorum=2)


async def on_three(stage: LogStage) -> None:
    """Logs on any three stores."""
    await repaired(stage)
    for name in ("events", "clicks", "orders"):
        await stage.log(name)


def names_of(stage: LogStage) -> Any:
    async def found() -> list[list[str]]:
        registry = stage.db._logs.registry
        uuid = stage.store(HOST).instance.uuid
        ledgers = [await registry.read(each) for each in await registry.list()]
        return [
            each.log for each in ledgers if any(uuid in s.stores for s in each.segments)
        ], await registry.leaving()

    return found()


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(monkeypatch, start_with_logs, prepare=on_three)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(monkeypatch, start_with_logs, prepare=on_four)


def test_a_host_is_decommissioned_and_the_undo_ends_that(three: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []

    def stop(name: str, addresses: list[str], *, timeout_s: float) -> tuple[str, ...]:
        stopped.extend(addresses)
        return tuple(addresses)

    monkeypatch.setattr(launch, "stop", stop)
    begun = three(f"nodes decommission {HOST}")
    assert begun.status == 0, begun.err
    assert begun.lines[0].startswith(f"{HOST} is being decommissioned: ") and re.search(
        r"\d ledgers? left", begun.lines[0]
    )
    done = three(f"nodes decommission {HOST} --wait", after=names_of)
    assert (done.status, done.lines) == (0, [f"{HOST} has no ledgers"]), done.err
    assert done.seen[0] == [] and len(done.seen[1]) == 1
    gone = three(f"nodes decommission {STORE} --stop --json").json
    assert gone["ledgers"]["left"] == [] and gone["tablets"] is None
    assert stopped == gone["stopped"] == [f"replication-worker/{HOST}", STORE]
    back = three(f"nodes decommission {HOST} --off", after=names_of)
    assert back.status == 0 and back.lines[0].startswith(f"{HOST} may have ledgers again; it has ")
    assert back.seen[1] == []
    three("nodes decommission nowhere").require(1, "there is no server 'nowhere'")
    three(f"nodes decommission {HOST} --off --wait").require(2, "there is nothing to wait for")


def uuid_of(ebla: Cli, host: str, **more: Any) -> str:
    nodes = ebla("nodes --json", **more).json["nodes"]
    return str(next(each["uuid"] for each in nodes if each["address"] == f"tablet-server/{host}"))


def test_a_host_that_is_named_by_its_server_or_its_store_is_decommissioned_with_both(three: Cli) -> None:
    for word in ("tablet-server/host-a", uuid_of(three, "host-a"), "ledger-store/host-a"):
        begun = three(f"nodes decommission {word} --json").json
        assert begun["ledgers"]["addresses"] == ["ledger-store/host-a"] and begun["ledgers"]["leaving"]
        assert [each["address"] for each in begun["tablets"]["servers"]] == ["tablet-server/host-a"]


def test_a_word_that_may_mean_several_hosts_decommissions_none(
    three: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebla.operate.decommissioning.names", lambda word, uuid, address: word == "host")
    refused = three("nodes decommission host", after=names_of)
    refused.require(1, "'host' may mean host-")
    assert refused.seen[1] == []


def test_a_decommission_moves_tablets_too_and_names_both_that_cannot_move(four: Cli) -> None:
    """Three tablet servers and three replicas: neither a tablet nor the ledger has another host."""

    async def prepare(stage: LogStage) -> None:
        await on_four(stage)
        await stage.table()

    stays = four("nodes decommission host-b --wait", prepare=prepare)
    assert stays.status == 1
    assert "2 replicas on host-b cannot move" in stays.message, stays.err
    assert "1 ledger on host-b cannot move (ledger " in stays.message
    assert "start another store" in stays.message and "`ebla nodes decommission --off`" in stays.message
    document = four("nodes decommission host-b --wait --json", prepare=prepare).json
    assert len(document["error"]["fields"]["ledgers"]) == 1


def test_a_decommission_does_not_wait_for_repairs_that_are_disabled_or_for_roles_that_do_not_run(
    three: Cli, stored: Cli
) -> None:
    async def disabled(stage: LogStage) -> None:
        await on_three(stage)

        await Repairs(stage.db._logs.session).disable()

    async def alone(stage: LogStage) -> None:
        for name in ("events", "clicks", "orders"):
            await stage.log(name)

    three(f"nodes decommission {HOST} --wait", prepare=disabled).require(
        1, "repairs of ledgers are disabled); `ebla autorecovery enable` starts them"
    )
    stored(f"nodes decommission {HOST} --wait", prepare=alone).require(1, "no auditor runs")


def test_status_nodes_and_check_show_a_decommission(four: Cli) -> None:
    async def begun(stage: LogStage) -> None:
        await on_four(stage)
        await stage.db._logs.registry.leave([STORE], True)
        await asyncio.sleep(10.0)

    shown = four("autorecovery status", prepare=begun)
    assert f"being decommissioned {HOST}" in shown.text and "to repair 1 ledger: 1 moving" in shown.text
    assert "not whole yet, because:" in shown.text and "start another store" in shown.text
    (marked,) = four("autorecovery status --json", prepare=begun).json["marked"]
    assert (marked["state"], marked["kind"]) == ("moving", "no_store")
    assert four("check", prepare=begun).status == 0, "every entry has its copies"
    nodes = four("nodes", prepare=begun)
    assert [row.split()[0] for row in nodes.lines if row.endswith("being decommissioned")] == [HOST]


def test_an_unrecoverable_ledger_is_named_with_its_entries_and_stores(stored: Cli) -> None:
    async def prepare(stage: LogStage) -> None:
        await repaired(stage)
        log = await stage.log(ensemble=1, write_quorum=1, ack_quorum=1)
        found = await stage.db._logs.registry.read((await log._ledgers.log("events")).ledgers[0].ledger)
        for each in ("host-a", "host-b", "host-c", HOST):
            if stage.store(each).instance.uuid in found.segments[0].stores:
                stage.cluster.crash(f"ledger-store/{each}")
        await asyncio.sleep(30.0)

    shown = stored("autorecovery status", prepare=prepare)
    assert "to repair 1 ledger: 1 unrecoverable" in shown.text
    assert (
        "5 entries have no readable copy (0-4): the stores that should have them do not run: at host-"
        in shown.text
    )
    (marked,) = stored("autorecovery status --json", prepare=prepare).json["marked"]
    assert (
        marked["state"] == "unrecoverable" and marked["entries"] == [[0, 4]] and len(marked["missing"]) == 1
    )
    checked = stored("check", prepare=prepare)
    assert checked.status == 1 and "is UNRECOVERABLE: 5 entries have no readable copy" in checked.text
    (ledger,) = stored("check --json", prepare=prepare).json["ledgers"]
    assert (ledger["status"], ledger["entries"]) == ("UNRECOVERABLE", [[0, 4]])


@pytest.mark.parametrize("command", ["check", "status"])
def test_a_deployment_whose_ledgers_are_not_known_is_not_called_healthy(
    logged: Cli, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    async def silent(*given: object) -> None:
        raise TimedOut("read_node at master/0: no answer within 5 s")

    monkeypatch.setattr("ebla.health.ledgers._Asker._read", silent)
    monkeypatch.setattr("ebla.cli.nodes.deployment.reach", lambda ui: "127.0.0.1:6379")
    up = launch.StatusReport(
        "ebla", "", launch.Survey(()), {}, (launch.RoleStatus("master/0", "", "running"),)
    )
    monkeypatch.setattr(launch, "status", lambda name: up)
    shown = logged(command)
    assert shown.status == 1 and "DEGRADED: " in shown.text
    assert "ledgers not known: read_node at master/0: no answer within 5 s" in shown.text
    assert "next: `ebla autorecovery status`" in shown.text
    assert "no answer" in logged("check --json").json["ledgers_unknown"]


def test_a_mark_that_cannot_be_decoded_is_reported_and_hides_no_other(logged: Cli) -> None:
    async def prepare(stage: LogStage) -> None:
        await stage.log()
        registry = stage.db._logs.registry
        (ledger,) = await registry.list()
        store = (await registry.read(ledger)).segments[0].stores[0]
        await registry.mark(ledger, store)
        session = await stage.db.session(30.0)
        await session.create(paths.of_mark(999), b"\xff", parents=True)

    checked = logged("check", prepare=prepare)
    assert checked.status == 1 and "UNDER_REPLICATED" in checked.text
    assert f"ledgers not known: the node {paths.of_mark(999)} cannot be decoded" in checked.text


def test_a_ledger_beyond_recovery_is_found_among_many_that_only_move(
    stored: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "ASKED_MAX", 10)

    async def prepare(stage: LogStage) -> None:
        await repaired(stage)
        await stage.log()
        registry = stage.db._logs.registry
        leaving, gone = (stage.store(host).instance.uuid for host in (HOST, "host-c"))
        repairs = Repairs(stage.db._logs.session)
        await repairs.disable()
        await registry.leave([STORE], True)
        for number in range(100, 111):
            await registry.mark(number, leaving)
        await registry.mark(5000, gone, lost=True)
        note = Note(
            "entries have no readable copy",
            1,
            3,
            60.0,
            1,
            1,
            (),
            "replication-worker/host-a",
            LOST,
            ((0, 9),),
            (gone,),
        )
        await repairs.notes.put(paths.of_note(5000), lambda known: note)

    checked = stored("check", prepare=prepare)
    assert (
        checked.status == 1 and "ledger 5000 is UNRECOVERABLE: entries have no readable copy" in checked.text
    )
    assert "2 more ledgers marked for repair" in " ".join(checked.text.split())


def test_a_store_that_does_not_reach_the_master_is_not_called_healthy(stored: Cli) -> None:
    async def cut(stage: LogStage) -> None:
        await repaired(stage)
        stage.cluster.network.cut(STORE, "master/0")
        await asyncio.sleep(60.0)

    checked = stored("check", prepare=cut)
    assert checked.status == 1 and f"{STORE} is SILENT: it answers, but" in checked.text
    assert "SILENT" in stored("nodes", prepare=cut).text


def test_check_says_that_no_ledger_is_repaired_and_why(stored: Cli) -> None:
    async def disabled(stage: LogStage) -> None:
        await repaired(stage)
        await Repairs(stage.db._logs.session).disable()

    off = stored("check", prepare=disabled)
    assert off.status == 1 and "ledgers are not repaired: repairs are disabled; `ebla" in off.text
    alone = stored("check")
    assert alone.status == 1 and "ledgers are not repaired: no auditor runs" in alone.text

    async def workless(stage: LogStage) -> None:
        await repaired(stage)
        stage.cluster.crash("replication-worker/host-a")
        await stage.log()
        registry = stage.db._logs.registry
        (ledger,) = await registry.list()
        await registry.mark(ledger, (await registry.read(ledger)).segments[0].stores[0])

    idle = stored("check", prepare=workless)
    assert idle.status == 1 and "ledgers are not repaired: no replication worker answers" in idle.text
    assert "workers repair that" not in idle.text
    assert stored("check", prepare=repaired).status == 0
