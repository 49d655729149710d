"""`ebla nodes forget`: a lost host with ledgers, and records that only it had; logs whose end is not known."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from ebla import aio
from ebla.actors.ledger.errors import EntryLost
from ebla.actors.ledger.shared.repairs import Repairs
from ebla.actors.ledger.store.records import key_of
from ebla.actors.master.messages import ForgetReply, ForgetRequest
from ebla.operate.cluster import Cluster
from ebla.placement import launch
from ebla.storage.errors import EblaError
from ebla.transport.client import DeploymentClient
from tests.cli.stage import SERVERS, STORES, Cli, LogStage, repaired
from tests.cli.test_decommission import HOST, STORE, on_three, uuid_of


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The roles that `ebla nodes forget` ends."""
    found: list[str] = []

    def forget(name: str, address: str) -> bool:
        found.append(address)
        return True

    monkeypatch.setattr(launch, "forget", forget)
    return found


async def on_host(stage: LogStage, *hosts: str, **settings: Any) -> Any:
    """A log whose ledger is on these hosts."""
    registry = stage.db._logs.registry
    others = [each for each in STORES if each.rpartition("/")[2] not in hosts]
    await registry.leave(others, True)
    log = await stage.log(**settings)
    await registry.leave(others, False)
    return log


def known(stage: LogStage) -> Any:
    async def found() -> list[str]:
        return [each.address for each in await stage.db._logs.registry.known()]

    return found()


def test_a_lost_store_is_forgotten_when_its_ledgers_have_moved(stored: Cli, ended: list[str]) -> None:
    async def lost(stage: LogStage) -> None:
        await on_host(stage, "host-a", "host-b", HOST)
        stage.cluster.crash(STORE)
        await asyncio.sleep(8.0)

    async def moved(stage: LogStage) -> None:
        await repaired(stage)
        await lost(stage)
        await asyncio.sleep(20.0)

    stored(f"nodes forget {HOST}", prepare=on_three).require(
        1, f"the ledger store at {STORE} answers; to remove it for good, first run `ebla nodes decommission"
    )
    refused = stored(f"nodes forget {HOST}", prepare=lost, after=known)
    refused.require(1, f"1 ledger still needs {HOST} (ledger ")
    assert "--accept-loss` gives up the rest" in refused.message and STORE in refused.seen and not ended
    assert "3 of 4 ledger stores" in stored("check", prepare=moved).text
    done = stored(f"nodes forget {HOST}", prepare=moved, after=known)
    assert (done.status, done.lines) == (0, [f"{HOST} is forgotten"]), done.err
    assert STORE not in done.seen and STORE in ended and f"replication-worker/{HOST}" in ended

    async def forgotten(stage: LogStage) -> None:
        await moved(stage)
        (uuid,) = [s.uuid for s in await stage.db._logs.registry.known() if s.address == STORE]
        await stage.db._logs.registry.forget(uuid)

    assert "3 of 3 ledger stores" in stored("check", prepare=forgotten).text
    assert (
        HOST
        not in stored("nodes", prepare=forgotten).text + stored("autorecovery status", prepare=forgotten).text
    )


def test_a_lost_host_with_ledgers_is_not_forgotten_by_the_uuid_of_its_server(
    stored: Cli, ended: list[str]
) -> None:
    async def lost(stage: LogStage) -> None:
        await on_host(stage, "host-a", "host-b", "host-c")
        stage.cluster.crash("tablet-server/host-a")
        stage.cluster.crash("ledger-store/host-a")
        await asyncio.sleep(60.0)

    async def interrupted(stage: LogStage) -> None:
        """The server is forgotten already, and its store is not."""
        await lost(stage)
        cluster = Cluster(stage.session, SERVERS)
        await cluster.persist("forget_server", ForgetRequest("host-a"), ForgetReply, 30.0)

    uuid = uuid_of(stored, "host-a", prepare=lost)
    for prepare, word in ((lost, uuid), (lost, "ledger-store/host-a"), (interrupted, uuid)):
        refused = stored(f"nodes forget {word}", prepare=prepare, after=known)
        refused.require(1, "1 ledger still needs host-a (ledger ")
        assert "ledger-store/host-a" in refused.seen and not ended


def test_a_loss_is_accepted_and_the_ledger_goes_on_without_the_entries(stored: Cli, ended: list[str]) -> None:
    """Entry 0 to 4 were on the lost host only."""

    async def lost(stage: LogStage) -> None:
        await repaired(stage)
        await on_host(stage, HOST, ensemble=1, write_quorum=1, ack_quorum=1)
        stage.cluster.crash(STORE)
        await asyncio.sleep(20.0)

    async def after(stage: LogStage) -> tuple[Any, Any]:
        ledgers = stage.db._logs
        (ledger,) = await ledgers.registry.list()
        found = await ledgers.registry.read(ledger)
        with pytest.raises(EntryLost):
            await ledgers.reader.read(found, 0, 0)
        await asyncio.sleep(15.0)
        return found, await Repairs(ledgers.session).marked()

    asked = stored(f"nodes forget {HOST} --accept-loss", prepare=lost)
    asked.require(1, "acknowledged writes may be lost, and there is no terminal for a confirmation")
    assert "of log 'events': entries 0-4" in asked.message
    wrong = stored(f"nodes forget {HOST} --accept-loss --yes-i-lose-data host-c", prepare=lost)
    wrong.require(1, "nothing was changed")
    assert not ended
    done = stored(f"nodes forget {HOST} --accept-loss --yes-i-lose-data {HOST}", prepare=lost, after=after)
    assert done.status == 0, done.err
    found, marks = done.seen
    assert found.given_up == ((0, 4),) and marks == []
    assert done.lines == [f"{HOST} is forgotten", f"  ledger {found.ledger} of log 'events': entries 0-4"]
    stored(f"nodes forget {HOST} --yes-i-lose-data {HOST}").require(2, "goes with --accept-loss")


def test_a_loss_is_accepted_of_a_store_whose_host_is_back_with_an_empty_directory(
    stored: Cli, ended: list[str]
) -> None:
    async def lost(stage: LogStage) -> None:
        await repaired(stage)
        await on_host(stage, HOST, ensemble=1, write_quorum=1, ack_quorum=1)
        stage.cluster.crash(STORE)
        stage.cluster.lose_disk(STORE)
        await stage.cluster.restart(STORE)
        await asyncio.sleep(40.0)

    async def after(stage: LogStage) -> tuple[Any, Any, Any, Any]:
        registry = stage.db._logs.registry
        (ledger,) = await registry.list()
        found = await registry.read(ledger)
        uuids = [each.uuid for each in await registry.known() if each.address == STORE]
        return found.given_up, uuids, await registry.leaving(), stage.store(HOST).instance.uuid

    command = "--accept-loss --yes-i-lose-data"
    refused = stored(f"nodes forget {HOST} {command} {HOST}", prepare=lost, after=after)
    given_up, uuids, _, new = refused.seen
    (old,) = [uuid for uuid in uuids if uuid != new]
    refused.require(1, f"`ebla nodes forget {old}` forgets only the store that lost its directory")
    assert given_up == ()
    stored(f"nodes forget {old}", prepare=lost).require(
        1, f"`ebla nodes forget {old} --accept-loss` gives up"
    )
    stored(f"nodes forget {old} {command} {HOST}", prepare=lost).require(1, "nothing was changed")
    done = stored(f"nodes forget {old[:8]} {command} {old}", prepare=lost, after=after)
    assert done.status == 0, done.err
    assert done.lines[0] == f"store {old} is forgotten" and done.lines[1].endswith("entries 0-4")
    assert done.seen == (((0, 4),), [new], [], new) and not ended


def test_no_record_is_given_up_while_tablets_have_a_replica_on_the_host(stored: Cli) -> None:
    async def lost(stage: LogStage) -> None:
        await repaired(stage)
        await stage.table()
        await on_host(stage, "host-c", ensemble=1, write_quorum=1, ack_quorum=1)
        for role in ("tablet-server", "ledger-store"):
            stage.cluster.crash(f"{role}/host-c")
        await asyncio.sleep(60.0)

    async def given_up(stage: LogStage) -> Any:
        registry = stage.db._logs.registry
        return [(await registry.read(each)).given_up for each in await registry.list()]

    command = "nodes forget host-c --accept-loss --yes-i-lose-data host-c"
    refused = stored(command, prepare=lost, after=given_up)
    refused.require(2, "tablet-server/host-c is still a member of 2 tablets")
    assert refused.seen == [()]


def test_an_end_that_lost_stores_may_know_is_decided_without_them(stored: Cli, ended: list[str]) -> None:
    """Two of three stores of an open ledger are lost: one of them is forgotten, the other one may return."""
    writers: list[Any] = []

    async def lost(stage: LogStage) -> None:
        await repaired(stage)
        log = await on_host(stage, "host-a", "host-c", HOST, records=0)
        registry = stage.db._logs.registry
        names = {stage.store(host).instance.uuid: host for host in ("host-a", "host-b", "host-c", HOST)}
        on: list[str] = []
        while on[:1] != [HOST]:  # each opening chooses other stores
            writers.append(await log.writer())
            found = await registry.read((await registry.list())[-1])
            on = [names[each] for each in found.segments[0].stores]
        for number in range(3):
            await writers[-1].append(b"%d" % number)
        await asyncio.sleep(1.0)
        stage.lost = on[:2]  # type: ignore[attr-defined]
        for host in stage.lost:  # type: ignore[attr-defined]
            stage.cluster.crash(f"ledger-store/{host}")
        await asyncio.sleep(45.0)

    async def after(stage: LogStage) -> Any:
        registry = stage.db._logs.registry
        found = await registry.read((await registry.list())[-1])
        return found, [each.data async for each in (await stage.db.log("events")).read()]

    shown = stored("autorecovery status", prepare=lost)
    assert "its end cannot be decided: too many of its stores do not run" in shown.text
    done = stored(f"nodes forget {HOST} --accept-loss --yes-i-lose-data {HOST}", prepare=lost, after=after)
    assert done.status == 0, done.err
    found, data = done.seen
    assert found.closed and data == [b"0", b"1", b"2"]
    assert "every record after the last entry that is found" in done.out


async def damaged(stage: LogStage, *rotten: str) -> int:
    """The last record of a log is on two of three stores, and its writer is dead. Its copies on these of the stores are damaged; the
    store of another copy is lost."""
    await repaired(stage)
    world = stage.cluster.client_world("client/dies")
    writer = await (await aio.Database(DeploymentClient(world)).create_log("events")).writer()
    for number in range(3):
        await writer.append(b"%d" % number)
    await asyncio.sleep(1.0)
    registry = stage.db._logs.registry
    (ledger,) = await registry.list()
    segment = (await registry.read(ledger)).segments[-1]
    hosts = {stage.store(host).instance.uuid: host for host in ("host-a", "host-b", "host-c", HOST)}
    named = dict(zip("abc", (hosts[uuid] for uuid in segment.stores), strict=True))
    stage.cluster.network.cut(world.address, f"ledger-store/{named['c']}")
    await writer.append(b"last")
    stage.cluster.crash(world.address)
    for each in "ab":
        address = f"ledger-store/{named[each]}"
        if each not in rotten:
            stage.cluster.crash(address)
            stage.lost = named[each]  # type: ignore[attr-defined]
            continue
        await stage.store(named[each])._mover.move_all()
        stage.cluster.state(address).rot("ledgers", "entries", key_of(ledger, 3))
        await stage.cluster.restart(address)
    await asyncio.sleep(10.0)
    with pytest.raises(EblaError):
        await (await stage.db.log("events")).writer(deadline_s=20.0)
    await asyncio.sleep(20.0)
    return ledger


def test_commands_say_that_the_last_copies_of_an_entry_are_damaged_and_accept_that(stored: Cli) -> None:
    async def prepare(stage: LogStage) -> None:
        stage.ledger = await damaged(stage, "a", "b")  # type: ignore[attr-defined]

    async def whole(stage: LogStage) -> Any:
        ledgers = stage.db._logs
        await asyncio.sleep(10.0)
        ledger = stage.ledger  # type: ignore[attr-defined]
        return await ledgers.registry.read(ledger), await Repairs(ledgers.session).marked()

    checked = stored("check", prepare=prepare, after=whole)
    ledger = checked.seen[0].ledger
    remedy = f"`ebla ledger give-up {ledger}` accepts the loss"
    assert checked.status == 1 and f"ledger {ledger} is UNRECOVERABLE: entry 3 of" in checked.text
    assert "1 unrecoverable" in (status := stored("autorecovery status", prepare=prepare).text)
    assert remedy in status
    stored("log append events x", prepare=prepare).require(1, remedy)
    copies = stored(f"ledger check {ledger}", prepare=prepare)
    assert (
        copies.status == 1 and re.search("checked up to entry [12]:", copies.text) and remedy in copies.text
    )
    stored(f"ledger give-up {ledger}", prepare=prepare).require(1, "there is no terminal for a confirmation")
    done = stored(f"ledger give-up {ledger} --yes-i-lose-data {ledger}", prepare=prepare, after=whole)
    assert (done.status, done.text) == (0, f"entries 3 of ledger {ledger} are given up"), done.err
    found, marks = done.seen
    assert found.closed and found.given_up == ((3, 3),) and marks == []


def test_the_loss_of_a_store_is_accepted_that_had_the_only_sound_copy_of_the_last_entry(
    stored: Cli, ended: list[str]
) -> None:
    hosts: list[str] = []

    async def prepare(stage: LogStage) -> None:
        await damaged(stage, "b")
        hosts.append(stage.lost)  # type: ignore[attr-defined]

    async def after(stage: LogStage) -> Any:
        registry = stage.db._logs.registry
        return await registry.read((await registry.list())[-1])

    checked = stored("check", prepare=prepare)
    assert (
        "is UNRECOVERABLE: its end cannot be decided: no store that runs has a sound copy of" in checked.text
    )
    if hosts[-1] == HOST:
        done = stored(
            f"nodes forget {HOST} --accept-loss --yes-i-lose-data {HOST}", prepare=prepare, after=after
        )
        assert done.status == 0, done.err
        assert done.seen.closed and done.seen.given_up == ((3, 3),)


def test_a_log_whose_stores_do_not_answer_is_listed_without_its_end(logged: Cli) -> None:
    async def prepare(stage: LogStage) -> None:
        log = await stage.db.create_log("open")
        await (await log.writer()).append(b"x")
        for host in ("host-a", "host-b", "host-c"):
            stage.cluster.crash(f"ledger-store/{host}")

    shown = logged("log list", prepare=prepare)
    assert shown.status == 0 and shown.lines[1].split()[:4] == ["open", "0", "-", "-"]
    for text in (shown.text, logged("log describe open", prepare=prepare).text):
        assert "0 to before 1, and the end is not known" in text
        assert "do not answer; bring them back, or, if they are lost for good, `ebla nodes forget" in text
    (log,) = logged("log list --json", prepare=prepare).json["logs"]
    assert (log["end"], log["known_end"]) == (None, 1) and "bring them back" in log["unknown"]
    checked = logged("check", prepare=prepare)
    assert checked.status == 1 and "ledger-store/host-a is UNREACHABLE" in checked.text
