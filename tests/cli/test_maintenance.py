"""`ebla nodes maintain`, and maintenance in the output of other commands."""

from __future__ import annotations

from ebla.actors.master.messages import Drained, DrainReply, DrainRequest, MaintainReply, MaintainRequest
from ebla.cli.nodes import draining
from ebla.operate.draining import waiting
from tests.cli.repair_stage import RepairStage
from tests.cli.stage import Cli
from tests.master.healed import hosts_of, silence

HELD = "tablet-server/b"


def down(stage: RepairStage) -> None:
    silence(stage, "b")
    stage.cluster.crash(HELD)


async def maintained(stage: RepairStage) -> None:
    await stage.persist(lambda: stage.ask("maintain", MaintainRequest("b"), MaintainReply))


async def maintained_and_down(stage: RepairStage) -> None:
    await maintained(stage)
    down(stage)
    await stage.until(lambda: not stage.alive("b"))


def test_maintenance_of_a_host_begins_and_ends(toys: Cli) -> None:
    async def after(stage: RepairStage) -> None:
        assert list(stage.master.catalog.maintained) == [HELD]

    async def over(stage: RepairStage) -> None:
        assert not stage.master.catalog.maintained

    done = toys("nodes maintain b", after=after)
    assert done.status == 0, done.err
    assert done.lines[0].startswith("b is in maintenance until `--off`: its 1 replica may be silent"), (
        done.out
    )
    (server,) = toys(f"nodes maintain {HELD} --json", prepare=maintained, after=after).json["servers"]
    assert server == {"address": HELD, "maintained": True, "alive": True, "replicas": 1}
    back = toys("nodes maintain b --off", prepare=maintained, after=over)
    assert back.lines == ["b is no longer in maintenance; it has 1 replica"]
    again = toys("nodes maintain b --off", after=over)
    assert (again.status, again.lines) == (0, back.lines), "the command can be repeated"
    toys("nodes maintain z").require(1, "there is no server 'z'; there are tablet-server/a")


def test_ending_maintenance_of_a_silent_host_announces_new_replicas(toys: Cli) -> None:
    async def replaced(stage: RepairStage) -> None:
        await stage.until(lambda: all("b" not in hosts_of(stage, tablet) for tablet in stage.tablets))

    back = toys("nodes maintain b --off", prepare=maintained_and_down, after=replaced)
    assert back.status == 0, back.err
    assert back.lines[0].endswith("it is silent, so its 1 replica will be created on other hosts")


def test_nodes_check_and_show_report_maintenance(toys: Cli) -> None:
    nodes = toys("nodes", prepare=maintained)
    assert [row.split()[0] for row in nodes.lines if row.endswith("in maintenance")] == ["b"]
    check = toys("check", prepare=maintained)
    assert check.status == 0, "maintenance alone is not a finding"
    assert [row.split()[0] for row in check.lines if row.endswith("in maintenance")] == ["b"]
    document = toys("nodes --json", prepare=maintained).json
    assert [each["host"] for each in document["nodes"] if each["maintained"]] == ["b"]

    sick = toys("check --json", prepare=maintained_and_down)
    assert sick.status == 1, "a tablet with a silent replica tolerates fewer losses"
    reasons = [reason for tablet in sick.json["tablets"] for reason in tablet["reasons"]]
    assert f"replica at {HELD} is UNREACHABLE: its server is in maintenance" in reasons
    tablet = sick.json["tablets"][0]["tablet"]
    shown = toys(f"tablet show {tablet}", prepare=maintained_and_down)
    (line,) = [row for row in shown.lines if row.split()[:1] == ["b"]]
    assert line.endswith("silent to its leader, in maintenance")


def test_a_host_can_drain_during_maintenance(toys: Cli) -> None:
    async def both(stage: RepairStage) -> None:
        await maintained(stage)
        stage.raft.copies = False
        await stage.persist(lambda: stage.ask("drain", DrainRequest("b"), DrainReply))

    nodes = toys("nodes", prepare=both)
    assert [row.split()[0] for row in nodes.lines if row.endswith("draining, in maintenance")] == ["b"]


def test_a_drain_that_maintenance_blocks_says_so(toys: Cli) -> None:
    async def taken(stage: RepairStage) -> None:
        for request in map(MaintainRequest, "acd"):
            await stage.persist(lambda request=request: stage.ask("maintain", request, MaintainReply))

    stuck = toys("nodes drain b --wait", prepare=taken)
    assert stuck.status == 1
    assert "is draining or is in maintenance; add a host" in stuck.message


def test_a_drain_that_waits_for_a_silent_host_in_maintenance_names_it(
    toys: Cli, places: dict[str, str]
) -> None:
    drained, away = places["leader"], places["follower"]

    async def begun(stage: RepairStage) -> None:
        await stage.persist(lambda: stage.ask("maintain", MaintainRequest(away), MaintainReply))

    async def gone(stage: RepairStage) -> None:
        await begun(stage)
        silence(stage, away)
        stage.cluster.crash(f"tablet-server/{away}")
        await stage.until(lambda: not stage.alive(away))

    alive = toys(f"nodes drain {drained} --json", prepare=begun).json
    assert alive["servers"][0]["waits_for"] == []
    silent = toys(f"nodes drain {drained}", prepare=gone)
    waits = f"tablets that also have a replica on {away} wait: silent, and in maintenance"
    assert f"  {waits}" in silent.lines
    late = toys(f"nodes drain {drained} --wait --timeout 5", prepare=gone)
    assert late.status != 0 and waits in late.message


def test_a_drain_counts_its_leaderless_tablets() -> None:
    left = DrainReply((Drained("tablet-server/b", True, 3, 0, leaderless=1),))
    said = draining._lines(left, [], {})
    assert said[1:] == ["  1 of them have no leader now, which a move needs: `ebla check` says why"]
    assert waiting(left) == "; 1 without a leader, see `ebla check`"
