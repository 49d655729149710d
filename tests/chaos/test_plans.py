"""Plans of faults: one per seed, within the budget, kept as JSON, and shrunk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from ebla.actors.fault_points import POINTS
from ebla.chaos import plans
from ebla.chaos.plans import DESTROY, Fault, Plan
from ebla.chaos.ray import scenarios as ray
from ebla.chaos.ray.run import Request, run
from ebla.chaos.ray.scenarios import scenario_of
from ebla.chaos.ray.stage.stage import victim_names
from ebla.chaos.runs import plan_of
from ebla.chaos.scenarios import columns
from ebla.chaos.scenarios.pacifica import PREFIX
from ebla.chaos.scenarios.scenarios import SCENARIOS, scenario
from ebla.chaos.simulation.nemesis import Nemesis
from ebla.show.steps import Steps
from ebla.storage.errors import InvalidArgument


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SCENARIOS)), st.integers(0, 10_000))
def test_a_seed_gives_one_plan_within_the_budget(name: str, seed: int) -> None:
    plan = plan_of(scenario(name), seed)
    assert plan == plan_of(scenario(name), seed)
    assert plans.decode(plans.encode(plan)) == plan
    assert [fault.at_s for fault in plan.faults] == sorted(fault.at_s for fault in plan.faults)
    plans.check(plan, scenario(name).host_names(), scenario(name).points)
    destroyed = {fault.where for fault in plan.faults if fault.kind in DESTROY}
    assert len(destroyed) <= 1, "data of at most one host is destroyed"
    for fault in plan.faults:
        assert fault.kind in SCENARIOS[name].mix
        assert not fault.point or fault.point in scenario(name).points


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted({**ray.SHARED, **ray.SCENARIOS})), st.integers(0, 10_000))
def test_a_plan_drawn_for_ray_can_be_carried_out_again(name: str, seed: int) -> None:
    hosts = tuple(f"host-{number}" for number in range(1, ray.scenario(name).hosts + 1))
    plan = ray.plan_of(name, seed, hosts, 60.0)
    victims = victim_names(len(hosts), ray.scenario(name).logs)
    plans.check(plans.decode(plans.encode(plan)), victims, ray.NO_POINTS)


def test_scenarios_with_several_masters_locks_ledgers_or_lost_hosts_run_only_in_simulation() -> None:
    own = {name.removeprefix(PREFIX) for name in set(SCENARIOS) - set(ray.SHARED)}
    assert {name for name in own if not name.startswith(columns.PREFIX)} == {
        "masters",
        "takeovers",
        "growing",
        "locks",
        "crowds",
        "disasters",
        "repairs",
        "ledgers",
    }
    with pytest.raises(InvalidArgument, match="there is no scenario 'crowds'"):
        ray.scenario("crowds")
    assert ray.scenario("pacifica-registers").replication == "pacifica"


def test_every_kind_of_fault_is_described_and_is_a_method_of_the_nemesis() -> None:
    table = (plans.__doc__ or "").partition("`master` is")[0]
    for kind in plans.KINDS:
        assert f"\n    {kind} " in table, kind
        assert callable(getattr(Nemesis, f"_{kind}")), kind
    assert {kind for each in SCENARIOS.values() for kind in each.mix} <= set(plans.KINDS)


HOSTS = ("host-1", "host-2", "host-3")
CRASH = Fault(1.0, "crash", ("host-1",), 1.0)
WRONG = [
    (Fault(1.0, "hit", ("host-1",)), "kind", "there is no fault 'hit'; there are crash, "),
    (Fault(1.0, "pauze", ("host-1",)), "kind", "; did you mean 'pause'?"),
    (Fault(-1.0, "crash", ("host-1",)), "at_s", "at_s must be between 0 and 86400, not -1"),
    (Fault(1.0, "crash", ("host-1",), -2.0), "for_s", "for_s must be between 0 and 3600, not -2"),
    (
        Fault(1.0, "crash", ("host-9",)),
        "where",
        "there is no host host-9; the hosts are host-1, host-2, host-3, master",
    ),
    (Fault(1.0, "crash"), "where", "crash needs 1 of the hosts host-1, host-2, host-3, master, not 0"),
    (Fault(1.0, "crash", ("host-1", "host-2")), "where", "crash needs 1 of the hosts"),
    (
        Fault(1.0, "cut", ("host-1",)),
        "where",
        "cut needs 2 of the hosts host-1, host-2, host-3, master, not 1",
    ),
    (Fault(1.0, "cut", ("host-1", "host-1")), "where", "names a host twice"),
    (Fault(1.0, "split", HOSTS), "where", "split needs 1 to 2 of the hosts"),
    (Fault(1.0, "zombie", ("master",)), "where", "zombie does not hit master; name one of host-1"),
    (Fault(1.0, "blackout", ("host-1",)), "where", "blackout hits all hosts; leave out `where`"),
    (Fault(1.0, "lose"), "amount", "the amount of lose must be between 0.0001 and 1, not 0"),
    (Fault(1.0, "lose", amount=7.0), "amount", "between 0.0001 and 1, not 7"),
    (Fault(1.0, "clock_rate", ("host-1",), amount=2.0), "amount", "between 0.9 and 1.1, not 2"),
    (Fault(1.0, "delay", amount=float("nan")), "amount", "not nan"),
    (Fault(1.0, "crash", ("host-1",), amount=1.0), "amount", "crash takes no amount; leave it out"),
    (Fault(1.0, "crash", ("host-1",), point=POINTS[-1]), "point", "crash takes no fault point"),
    (Fault(1.0, "crash_point", ("host-1",)), "point", "there is no fault point ''; name one of "),
    (Fault(1.0, "lose_host", ("host-1",)), "where", "hits a ledger store; name one of a scenario that has"),
    (Fault(1.0, "old_catalog"), "kind", "the scenario does not expect old_catalog"),
    (Fault(1.0, "accept_catalog"), "kind", "the scenario does not expect accept_catalog"),
    (
        Fault(1.0, "crash_point", ("host-1",), point="tablet.log.before_comit"),
        "point",
        "did you mean 'tablet.log.before_commit'?",
    ),
    (
        Fault(1.0, "crash_point", ("host-1",), point="master.format.before_mark"),
        "point",
        "is passed by master only; name master as its host",
    ),
]


@pytest.mark.parametrize(("fault", "field", "why"), WRONG, ids=[f"{each[0]}" for each in WRONG])
def test_an_impossible_fault_is_refused_with_its_number_and_the_remedy(
    fault: Fault, field: str, why: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        plans.check(Plan("calm", 0, (CRASH, fault)), HOSTS, catalogs=())
    assert why in str(refused.value)
    assert str(refused.value).endswith(f"at `$.faults[1].{field}`")


def test_a_fault_of_all_hosts_and_a_paused_master_are_accepted() -> None:
    plans.check(Plan("calm", 0, (Fault(0.0, "blackout"), Fault(0.0, "pause", ("master",)))), HOSTS)


def test_a_plan_may_destroy_data_of_one_host_only() -> None:
    rot, lost = Fault(1.0, "rot", ("host-1",), amount=3.0), Fault(2.0, "lose_disk", ("host-1",))
    plans.check(Plan("disks", 0, (rot, lost)), HOSTS)
    elsewhere = msgspec.structs.replace(lost, where=("host-2",))
    with pytest.raises(InvalidArgument, match=r"name host-1 here, too - at `\$\.faults\[2\]\.where`"):
        plans.check(Plan("disks", 0, (rot, CRASH, elsewhere)), HOSTS)


def test_a_fault_that_only_some_scenarios_expect_is_accepted_in_those() -> None:
    for name, fault in (
        ("restores", Fault(1.0, "old_catalog")),
        ("repairs", Fault(1.0, "lose_host", ("store-1",))),
    ):
        wanted = scenario(name)
        plans.check(Plan(name, 0, (fault,)), wanted.host_names(), wanted.points, wanted.mix)
    with pytest.raises(InvalidArgument, match="name one of store-1 - at"):
        plans.check(Plan("repairs", 0, (Fault(1.0, "lose_host", ("host-1",)),)), ("host-1", "store-1"))


def test_a_host_that_no_run_on_ray_can_have_is_refused_before_the_simulation_has_as_many() -> None:
    plan = Plan("crashes", 0, (Fault(2.0, "crash", ("host-9",)),), plans.RAY)
    with pytest.raises(InvalidArgument, match="there is no host host-9: a run on Ray has 8 hosts at most"):
        scenario_of(plan)


def test_the_simulated_tables_of_a_plan_for_ray_have_as_many_replicas() -> None:
    plan = ray.plan_of("five", 0, tuple(f"host-{number}" for number in range(1, 6)), 60.0)
    assert scenario_of(plan).replicas == ray.scenario("five").replicas == 5


def test_a_bad_plan_for_ray_is_refused_before_the_start(tmp_path: Path) -> None:
    plan = Plan("crashes", 0, (CRASH, Fault(2.0, "crash", ("host-9",))))
    request = Request("crashes", tmp_path, tmp_path / "results", plan=plan)
    with pytest.raises(InvalidArgument, match="there is no host host-9"):
        run(request, Steps(Console(stderr=True), quiet=True))
    assert list(tmp_path.iterdir()) == []


def test_plans_of_different_seeds_differ_and_omit_kinds() -> None:
    everything = [plan_of(scenario("everything"), seed) for seed in range(40)]
    assert len({plan.faults for plan in everything}) == 40
    kinds = [{fault.kind for fault in plan.faults} for plan in everything]
    assert set().union(*kinds) == set(SCENARIOS["everything"].mix)
    assert all(len(each) < len(SCENARIOS["everything"].mix) for each in kinds)


def test_a_plan_shrinks_to_the_faults_that_the_failure_needs() -> None:
    plan = plan_of(scenario("everything"), 3)
    needed = {plan.faults[2], plan.faults[-1]}
    runs = 0

    def fails(tried: Plan) -> bool:
        nonlocal runs
        runs += 1
        return needed <= set(tried.faults)

    assert set(plans.shrink(plan, fails).faults) == needed
    assert runs < 80


def test_an_invalid_plan_is_refused_with_the_field() -> None:
    with pytest.raises(msgspec.ValidationError, match="seed"):
        plans.decode(b'{"scenario": "calm", "seed": "x", "faults": []}')
    with pytest.raises(msgspec.ValidationError, match=r"'moon' - at `\$\.stage`"):
        plans.decode(b'{"scenario": "calm", "seed": 1, "stage": "moon", "faults": []}')
    with pytest.raises(InvalidArgument, match="there are calm"):
        scenario("unheard-of")


def test_a_fault_is_shown_as_a_sentence() -> None:
    assert str(Fault(3.2, "pause", ("host-2",), 4.0)) == "at   3.20 s: pause host-2 for 4.00 s"
    assert str(Fault(0.5, "lose", (), 1.0, 0.2)) == "at   0.50 s: lose 0.2 for 1.00 s"


@pytest.mark.parametrize("name", ["everything", "disks", "calm", "crashes", "partitions"])
def test_a_plan_drawn_for_ray_is_simulated_with_the_scenario_of_ray(name: str) -> None:
    """Hosts and workloads are those of Ray's scenario, even if the simulation has one of the same name."""
    hosts = tuple(f"host-{number}" for number in range(1, 5))
    plan = plans.decode(plans.encode(ray.plan_of(name, 3, hosts, 60.0)))
    twin = scenario_of(plan)
    plans.check(plan, twin.host_names(), ray.NO_POINTS)
    mine, theirs = twin.workloads(), ray.scenario(name).workloads()
    assert [type(each) for each in mine] == [type(each) for each in theirs]
