"""Plans of faults: data that is the same for a seed, keeps within its budget, travels as JSON and shrinks."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.actors.fault_points import POINTS
from ebla.chaos import plans
from ebla.chaos.plans import DESTROY, Fault, Plan
from ebla.chaos.scenarios import SCENARIOS, scenario
from ebla.chaos.simulation.nemesis import Nemesis
from ebla.chaos.simulation.runs import plan_of
from ebla.storage.errors import InvalidArgument


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SCENARIOS)), st.integers(0, 10_000))
def test_a_seed_is_one_plan_within_its_budget(name: str, seed: int) -> None:
    plan = plan_of(scenario(name), seed)
    assert plan == plan_of(scenario(name), seed)
    assert plans.decode(plans.encode(plan)) == plan
    assert [fault.at_s for fault in plan.faults] == sorted(fault.at_s for fault in plan.faults)
    destroyed = {fault.where for fault in plan.faults if fault.kind in DESTROY}
    assert len(destroyed) <= 1, "data is destroyed on one host at most"
    for fault in plan.faults:
        assert fault.kind in SCENARIOS[name].mix
        assert hasattr(Nemesis, f"_{fault.kind}")
        assert not fault.point or fault.point in POINTS


def test_seeds_differ_and_leave_kinds_out() -> None:
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


def test_what_is_no_plan_is_refused_with_the_field() -> None:
    with pytest.raises(msgspec.ValidationError, match="seed"):
        plans.decode(b'{"scenario": "calm", "seed": "x", "faults": []}')
    with pytest.raises(InvalidArgument, match="there are calm"):
        scenario("unheard-of")


def test_a_fault_reads_like_a_sentence() -> None:
    assert str(Fault(3.2, "pause", ("host-2",), 4.0)) == "at   3.20 s: pause host-2 for 4.00 s"
    assert str(Fault(0.5, "lose", (), 1.0, 0.2)) == "at   0.50 s: lose 0.2 for 1.00 s"
