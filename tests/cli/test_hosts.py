"""`ebla nodes drain | forget | maintain | suspend` and `ebla level` on toys, and what other commands report of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.actors import messages as m
from ebla.actors.master import messages as master
from ebla.cli.nodes import draining
from ebla.operate.cluster import Cluster
from ebla.operate.draining import waiting
from ebla.placement import launch
from tests.cli.repair_stage import RepairStage, Toys, on_toys
from tests.master.healed import asked, hosts_of, silence, well

SERVER = "tablet-server/b"


async def told(stage: RepairStage, method: str, request: Any, reply: type[Any]) -> None:
    await stage.persist(lambda: stage.ask(method, request, reply))


async def drain(stage: RepairStage, host: str = "b") -> None:
    await told(stage, "drain", master.DrainRequest(host), master.DrainReply)


async def maintain(stage: RepairStage, host: str = "b") -> None:
    await told(stage, "maintain", master.MaintainRequest(host), master.MaintainReply)


async def lost(stage: RepairStage, host: str) -> None:
    silence(stage, host)
    stage.cluster.crash(f"tablet-server/{host}")
    await stage.until(lambda: not stage.alive(host))


def at_b(stage: RepairStage) -> list[str]:
    return [tablet for tablet in stage.tablets if "b" in hosts_of(stage, tablet)]


# -- draining ------------------------------------------------------------------------------------------------


def test_a_host_is_drained_and_its_server_stopped(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[list[str]] = []

    def stop(name: str, addresses: list[str], *, timeout_s: float) -> tuple[str, ...]:
        stopped.append(addresses)
        return tuple(addresses)

    async def without_copies(stage: RepairStage) -> None:
        stage.raft.copies = False

    monkeypatch.setattr(launch, "stop", stop)
    done = toys(
        "nodes drain b --wait",
        after=lambda stage: (well(stage), [*stage.master.catalog.draining], at_b(stage)),
    )
    assert (done.status, done.lines, stopped) == (0, ["b is drained"], [])
    assert done.seen == (True, [SERVER], [])
    gone = toys("nodes drain b --stop --json").json
    assert gone["stopped"] == [SERVER] and stopped == [[SERVER]]
    assert gone["servers"][0]["replicas"] == 0
    begun = toys("nodes drain b", prepare=without_copies)
    assert begun.status == 0 and begun.lines[0].startswith("b is draining: ")
    back = toys("nodes drain b --off")
    assert back.status == 0 and back.lines[0].startswith("b may have replicas again")


def test_a_drained_server_is_stopped_after_its_replicas_are_deleted(
    toys: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is stopped earlier would start again with its last replica."""
    monkeypatch.setattr(launch, "stop", lambda name, addresses, *, timeout_s: tuple(addresses))

    async def slowly(stage: RepairStage) -> None:
        server = stage.server("b")
        honest = server._bury

        async def bury(request: m.DeleteTabletRequest) -> m.Empty:
            await asyncio.sleep(3.0)
            return await honest(request)

        monkeypatch.setattr(server, "_bury", bury)

    done = toys(
        "nodes drain b --stop",
        prepare=slowly,
        after=lambda stage: {replica.state for replica in stage.server("b").replicas.values()},
    )
    assert (done.status, done.lines) == (0, ["b is drained; its tablet server has stopped"]), done.err
    assert done.seen == {m.DELETED}


def test_a_drain_names_non_voters_that_will_not_be_created_elsewhere(toys: Toys) -> None:
    tablet, extra = toys.tablet, toys.spare

    async def prepare(stage: RepairStage) -> None:
        await asked(stage, "add_replica", master.AddReplicaRequest(tablet, extra, "non_voter"))
        await stage.until(lambda: extra in hosts_of(stage, tablet))

    drain = ("nodes", "drain", extra)
    done = toys(*drain, "--wait", prepare=prepare, after=lambda stage: hosts_of(stage, tablet))
    assert (done.status, done.lines, done.seen) == (0, [f"{extra} is drained"], toys.held)
    lost = f"the non-voter of tablet {tablet[:8]} on {extra} will not be created on another host"
    assert f"warning: {lost}" in done.message, done.err
    document = toys(*drain, "--json", prepare=prepare).json
    assert document["non_voters"] == {f"tablet-server/{extra}": [tablet]}
    assert "warning" not in toys(f"nodes drain {toys.follower}", prepare=prepare).err
    assert "warning" not in toys(*drain, "--off", prepare=prepare).err


def test_a_drain_names_the_masters_and_journal_nodes_that_stay(
    toys: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[list[str]] = []

    async def hosts(cluster: object, addresses: list[str]) -> dict[str, str | None]:
        requests.append(addresses)
        return {"journal/1": "b", "journal/2": None, **dict.fromkeys(addresses, "b")}

    monkeypatch.setattr(Cluster, "hosts", hosts)
    done = toys("nodes drain b --wait")
    assert done.lines == [
        "b is drained",
        "  master/m (active), journal/1 stay there: a drain moves tablets only",
        "  `ebla master failover` makes another master active, if there is one",
    ]
    assert requests == [["master/m"]]
    begun = toys("nodes drain b --json").json
    assert begun["staying"] == {SERVER: ["master/m (active)", "journal/1"]}
    assert toys("nodes drain c").lines[-1].startswith("c is draining: ")


def test_a_lost_host_is_forgotten(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def forget(name: str, address: str) -> bool:
        ended.append(address)
        return True

    async def drained(stage: RepairStage) -> None:
        await drain(stage)
        await stage.until(lambda: well(stage) and not at_b(stage))
        stage.cluster.crash(SERVER)

    monkeypatch.setattr(launch, "forget", forget)
    shown = toys("check", prepare=drained)
    assert shown.status == 0, shown.out
    line = next(row for row in shown.lines if row.startswith("b "))
    assert line.split()[1:3] == ["STOPPED", "0"]
    assert "draining; stopped after draining" in line
    done = toys("nodes forget b", prepare=drained, after=lambda stage: stage.master.catalog.forgotten)
    assert (done.status, done.lines, ended) == (0, ["b is forgotten"], [SERVER])
    assert list(done.seen.values()) == [SERVER]
    document = toys(f"nodes forget {SERVER} --json", prepare=drained).json
    assert (document["address"], len(document["uuids"]), document["ended"]) == (SERVER, 1, True)
    toys("nodes forget b").require(1, "the server at tablet-server/b answers")
    toys("nodes forget z").require(1, "there is no server 'z'")
    assert len(ended) == 2


def test_a_drain_that_cannot_end_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    few = on_toys(monkeypatch, "abc")
    stuck = few("nodes drain b --wait")
    stuck.require(1, "2 replicas on b cannot move")
    assert "`ebla nodes drain --off`" in stuck.message
    assert "2 of them cannot move now: add a host" in few("nodes drain b").out
    few("nodes drain z").require(1, "there is no server 'z'; there are tablet-server/a")
    few("nodes drain b --off --wait").require(2, "there is nothing to wait for")


def test_a_drain_counts_its_leaderless_tablets() -> None:
    left = master.DrainReply((master.Drained(SERVER, True, 3, 0, leaderless=1),))
    said = draining.lines_of(left, [], {}, "")
    assert said[1:] == ["  1 of them have no leader now, which a move needs: `ebla check` says why"]
    assert waiting(left) == "; 1 without a leader, see `ebla check`"


# -- maintenance ---------------------------------------------------------------------------------------------


async def maintained_and_lost(stage: RepairStage) -> None:
    await maintain(stage)
    await lost(stage, "b")


def maintained(stage: RepairStage) -> list[str]:
    return [*stage.master.catalog.maintained]


def test_maintenance_of_a_host_begins_and_ends(toys: Toys) -> None:
    done = toys("nodes maintain b", after=maintained)
    assert (done.status, done.seen) == (0, [SERVER]), done.err
    assert done.lines[0].startswith("b is in maintenance until `--off`: its 1 replica may be silent")
    again = toys(f"nodes maintain {SERVER} --json", prepare=maintain, after=maintained)
    assert again.json["servers"] == [{"address": SERVER, "maintained": True, "alive": True, "replicas": 1}]
    assert again.seen == [SERVER]
    for prepare in (maintain, None):
        back = toys("nodes maintain b --off", prepare=prepare, after=maintained)
        assert (back.status, back.seen) == (0, []), "the command can be repeated"
        assert back.lines == ["b is no longer in maintenance; it has 1 replica"]
    toys("nodes maintain z").require(1, "there is no server 'z'; there are tablet-server/a")


def test_ending_maintenance_of_a_silent_host_announces_new_replicas(toys: Toys) -> None:
    async def replaced(stage: RepairStage) -> None:
        await stage.until(lambda: not at_b(stage))

    back = toys("nodes maintain b --off", prepare=maintained_and_lost, after=replaced)
    assert back.status == 0, back.err
    assert back.lines[0].endswith("it is silent, so its 1 replica will be created on other hosts")


def test_nodes_check_and_show_report_maintenance(toys: Toys) -> None:
    for command in ("nodes", "check"):
        shown = toys(command, prepare=maintain)
        assert shown.status == 0, "maintenance alone is not a finding"
        assert [row.split()[0] for row in shown.lines if row.endswith("in maintenance")] == ["b"]
    document = toys("nodes --json", prepare=maintain).json
    assert [each["host"] for each in document["nodes"] if each["maintained"]] == ["b"]

    sick = toys("check --json", prepare=maintained_and_lost)
    assert sick.status == 1, "a tablet with a silent replica tolerates fewer losses"
    reasons = [reason for tablet in sick.json["tablets"] for reason in tablet["reasons"]]
    assert f"replica at {SERVER} is UNREACHABLE: its server is in maintenance" in reasons
    tablet = sick.json["tablets"][0]["tablet"]
    shown = toys(f"tablet show {tablet}", prepare=maintained_and_lost)
    (line,) = [row for row in shown.lines if row.split()[:1] == ["b"]]
    assert line.endswith("silent to its leader, in maintenance")


def test_a_host_can_drain_during_maintenance(toys: Toys) -> None:
    async def both(stage: RepairStage) -> None:
        await maintain(stage)
        stage.raft.copies = False
        await drain(stage)

    nodes = toys("nodes", prepare=both)
    assert [row.split()[0] for row in nodes.lines if row.endswith("draining, in maintenance")] == ["b"]


def test_a_drain_that_maintenance_blocks_says_so(toys: Toys) -> None:
    async def taken(stage: RepairStage) -> None:
        for host in "acd":
            await maintain(stage, host)

    toys("nodes drain b --wait", prepare=taken).require(1, "is draining or is in maintenance; add a host")


def test_a_drain_that_waits_for_a_silent_host_in_maintenance_names_it(toys: Toys) -> None:
    drained, away = toys.leader, toys.follower

    async def begun(stage: RepairStage) -> None:
        await maintain(stage, away)

    async def gone(stage: RepairStage) -> None:
        await begun(stage)
        await lost(stage, away)

    alive = toys(f"nodes drain {drained} --json", prepare=begun).json
    assert alive["servers"][0]["waits_for"] == []
    waits = f"tablets that also have a replica on {away} wait: silent, and in maintenance"
    assert f"  {waits}" in toys(f"nodes drain {drained}", prepare=gone).lines
    late = toys(f"nodes drain {drained} --wait --timeout 5", prepare=gone)
    assert late.status != 0 and waits in late.message


# -- suspension and level ------------------------------------------------------------------------------------


def test_a_host_is_suspended_and_gets_leases_again(toys: Toys) -> None:
    async def suspend(stage: RepairStage) -> None:
        await told(stage, "suspend", master.SuspendRequest("b"), master.SuspendReply)

    def suspended(stage: RepairStage) -> list[str]:
        return [*stage.master.catalog.suspended]

    done = toys("nodes suspend b", after=suspended)
    assert done.lines == ["b is suspended until `--off`: it gets no leases and no new replicas"]
    assert (done.status, done.seen) == (0, [SERVER])
    again = toys("nodes suspend b --json", prepare=suspend, after=suspended)
    assert again.json["servers"] == [{"address": SERVER, "suspended": True, "primaries": 0}]
    assert again.seen == [SERVER]
    shown = toys("nodes", prepare=suspend)
    assert [row.split()[0] for row in shown.lines if row.endswith("suspended")] == ["b"]
    nodes = toys("nodes --json", prepare=suspend).json["nodes"]
    assert [each["host"] for each in nodes if each["suspended"]] == ["b"]
    back = toys("nodes suspend b --off", prepare=suspend, after=suspended)
    assert (back.lines, back.seen) == (["b gets leases again"], [])
    toys("nodes suspend z").require(1, "there is no server 'z'; there are tablet-server/a")


async def only_a_c_d(stage: RepairStage) -> None:
    request = master.AllowRequest(("a", "c", "d", "e"))
    await told(stage, "allow_only", request, master.AllowReply)


def test_only_the_hosts_on_the_list_are_allowed_until_the_list_ends(toys: Toys) -> None:
    def allowed(stage: RepairStage) -> list[str]:
        return [*stage.master.catalog.allowed]

    assert toys("nodes allow-only").lines == ["every host is allowed"]
    lines = [
        "only a, c, d, e are allowed, until `--off`",
        "  e has no known server",
        "  b is not allowed: it gets no leases and no new replicas",
    ]
    done = toys("nodes allow-only a c d e", after=allowed)
    assert (done.status, done.lines, len(done.seen)) == (0, lines, 4)
    assert toys("nodes allow-only", prepare=only_a_c_d).lines == lines
    document = toys("nodes allow-only --json", prepare=only_a_c_d).json
    assert document["unlisted"] == [{"address": SERVER, "suspended": True, "primaries": 0}]
    back = toys("nodes allow-only --off", prepare=only_a_c_d, after=allowed)
    assert (back.lines, back.seen) == (["every host is allowed"], [])
    toys("nodes allow-only a --off").require(2, "takes no hosts")
    toys("nodes allow-only z").require(1, "there is no server 'z'; there are tablet-server/a")


def test_a_host_that_is_not_allowed_is_shown_with_the_command_that_changes_the_list(toys: Toys) -> None:
    warning = "list gets no leases and no new replicas; `ebla nodes allow-only` changes the list: b"
    for command in ("nodes", "check"):
        assert warning in " ".join(toys(command, prepare=only_a_c_d).text.split())
    shown = toys("nodes", prepare=only_a_c_d)
    assert [row.split()[0] for row in shown.lines if row.endswith("not allowed")] == ["b"]
    nodes = toys("nodes --json", prepare=only_a_c_d).json["nodes"]
    assert [each["host"] for each in nodes if each["unlisted"]] == ["b"]


def test_a_host_that_is_not_allowed_takes_no_replica_from_an_operator(toys: Toys) -> None:
    async def without_spare(stage: RepairStage) -> None:
        hosts = (host for host in "abcd" if host != toys.spare)
        await told(stage, "allow_only", master.AllowRequest(tuple(hosts)), master.AllowReply)

    added = toys(f"tablet add-replica {toys.tablet} {toys.spare}", prepare=without_spare)
    added.require(2, "not on the allow list and gets nothing new")


WHY = "because an operator set the level freezed; `ebla level steady` ends it"


async def frozen(stage: RepairStage) -> None:
    await told(stage, "level", master.LevelRequest("freezed"), master.LevelReply)


def level(stage: RepairStage) -> str:
    found: str = stage.master.catalog.level
    return found


def test_the_level_is_shown_and_set(toys: Toys) -> None:
    shown = toys("level")
    assert shown.lines == [
        "level steady: tablets are cured",
        "4 of 4 servers send heartbeats; with fewer than 2, cure is frozen",
    ]
    done = toys("level freezed", after=level)
    assert (done.status, done.seen) == (0, "freezed"), done.err
    assert done.text.startswith("level freezed: cure is frozen since 2023-") and WHY in done.text
    again = toys("level freezed --json", prepare=frozen, after=level)
    reported = [again.json[name] for name in ("level", "present", "live", "expected")]
    assert (again.seen, reported) == ("freezed", ["freezed", "freezed", 4, 4])
    back = toys("level steady", prepare=frozen, after=level)
    assert (back.status, back.lines, back.seen) == (0, shown.lines, "steady")
    toys("level lively").require(2, "level must be freezed or steady, not 'lively'")


def test_too_few_live_servers_are_the_reason_of_a_frozen_cluster(toys: Toys) -> None:
    async def one_left(stage: RepairStage) -> None:
        for host in "bcd":
            silence(stage, host)
        await stage.until(lambda: not any(stage.alive(host) for host in "bcd"))

    shown = toys("level", prepare=one_left)
    assert shown.text.startswith("level steady: cure is frozen since 2023-")
    assert "because 1 of 4 servers send heartbeats, and 2 must; it ends when they are back" in shown.text
    reported = toys("level --json", prepare=one_left).json
    assert (reported["level"], reported["present"], reported["needed"]) == ("steady", "freezed", 2)


def test_check_and_drain_report_a_frozen_cluster(toys: Toys) -> None:
    checked = toys("check", prepare=frozen)
    assert checked.status == 0, "an operator froze it, and all else is well"
    assert "warning: cure is frozen since 2023-" in checked.text and WHY in checked.text
    document = toys("check --json", prepare=frozen).json
    assert WHY in document["masters"][0]["frozen"]
    drained = toys("nodes drain b", prepare=frozen)
    assert drained.text.startswith("no replica moves: cure is frozen since 2023-"), drained.out
    assert WHY in toys("nodes drain b --json", prepare=frozen).json["frozen"]
    toys("nodes drain b --wait --timeout 5", prepare=frozen).require(1, "cure is frozen")
