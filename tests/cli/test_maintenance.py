"""`ebla nodes maintain`, as it is typed, and what the other commands show of it."""

from __future__ import annotations

from ebla.actors.master.messages import Drained, DrainReply, DrainRequest, MaintainReply, MaintainRequest
from ebla.cli.nodes import draining
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


def test_a_host_goes_into_maintenance_and_out_of_it(toys: Cli) -> None:
    async def after(stage: RepairStage) -> None:
        assert list(stage.master.catalog.maintained) == [HELD]

    async def over(stage: RepairStage) -> None:
        assert not stage.master.catalog.maintained

    done = toys("nodes", "maintain", "b", after=after)
    assert done.status == 0, done.err
    assert done.lines[0].startswith("b is in maintenance until `--off`: its 1 replica may be silent"), (
        done.out
    )
    (told,) = toys("nodes", "maintain", HELD, "--json", prepare=maintained, after=after).json["servers"]
    assert told == {"address": HELD, "maintained": True, "alive": True, "replicas": 1}
    back = toys("nodes", "maintain", "b", "--off", prepare=maintained, after=over)
    assert back.lines == ["b is no longer in maintenance; it has 1 replica"]
    again = toys("nodes", "maintain", "b", "--off", after=over)
    assert (again.status, again.lines) == (0, back.lines), "it may be repeated"
    unknown = toys("nodes", "maintain", "z")
    assert (unknown.status, "there is no server 'z'; there are tablet-server/a" in unknown.err) == (1, True)


def test_whoever_ends_it_while_the_host_is_down_is_told_what_follows(toys: Cli) -> None:
    async def replaced(stage: RepairStage) -> None:
        await stage.until(lambda: all("b" not in hosts_of(stage, tablet) for tablet in stage.tablets))

    back = toys("nodes", "maintain", "b", "--off", prepare=maintained_and_down, after=replaced)
    assert back.status == 0, back.err
    assert back.lines[0].endswith("it is silent, so its 1 replica will be created on other hosts")


def test_nodes_check_and_show_tell_of_it(toys: Cli) -> None:
    nodes = toys("nodes", prepare=maintained)
    assert [row.split()[0] for row in nodes.lines if row.endswith("in maintenance")] == ["b"]
    check = toys("check", prepare=maintained)
    assert check.status == 0, "maintenance alone is no complaint"
    assert [row.split()[0] for row in check.lines if row.endswith("in maintenance")] == ["b"]
    document = toys("nodes", "--json", prepare=maintained).json
    assert [each["host"] for each in document["nodes"] if each["maintained"]] == ["b"]

    sick = toys("check", "--json", prepare=maintained_and_down)
    assert sick.status == 1, "a tablet that lacks a replica can lose one less"
    reasons = [reason for tablet in sick.json["tablets"] for reason in tablet["reasons"]]
    assert f"replica at {HELD} is UNREACHABLE: its server is in maintenance" in reasons
    tablet = sick.json["tablets"][0]["tablet"]
    shown = toys("tablet", "show", tablet, prepare=maintained_and_down)
    (line,) = [row for row in shown.lines if row.split()[:1] == ["b"]]
    assert line.endswith("silent to its leader, in maintenance")


def test_a_host_may_drain_and_be_in_maintenance(toys: Cli) -> None:
    async def both(stage: RepairStage) -> None:
        await maintained(stage)
        stage.fairy.copies = False
        await stage.persist(lambda: stage.ask("drain", DrainRequest("b"), DrainReply))

    nodes = toys("nodes", prepare=both)
    assert [row.split()[0] for row in nodes.lines if row.endswith("draining, in maintenance")] == ["b"]


def test_a_drain_that_maintenance_keeps_from_its_end_says_so(toys: Cli) -> None:
    async def taken(stage: RepairStage) -> None:
        for request in map(MaintainRequest, "acd"):
            await stage.persist(lambda request=request: stage.ask("maintain", request, MaintainReply))

    stuck = toys("nodes", "drain", "b", "--wait", prepare=taken)
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

    alive = toys("nodes", "drain", drained, "--json", prepare=begun).json
    assert alive["servers"][0]["waits_for"] == []
    told = toys("nodes", "drain", drained, prepare=gone)
    assert f"  tablets that also have a replica on {away} wait: silent, and in maintenance" in told.lines
    late = toys("nodes", "drain", drained, "--wait", "--timeout", "5", prepare=gone)
    assert late.status != 0
    assert f"tablets that also have a replica on {away} wait: silent, and in maintenance" in " ".join(
        late.err.split()
    )


def test_a_drain_tells_of_how_many_tablets_nobody_leads() -> None:
    left = DrainReply((Drained("tablet-server/b", True, 3, 0, leaderless=1),))
    said = draining._told(left, [], {})
    assert said[1:] == ["  1 of them have no leader now, which a move needs: `ebla check` says why"]
    assert draining._waiting(left) == "; 1 without a leader, see `ebla check`"
