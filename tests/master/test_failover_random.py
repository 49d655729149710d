"""Random troubles of masters and journal nodes, and known mistakes that they must find."""

from __future__ import annotations

import pytest

from tests.master.failover_workload import act_one, act_two
from tests.master.group_stage import GroupStage, play


async def both_acts(stage: GroupStage) -> None:
    await act_two(stage, await act_one(stage))


@pytest.mark.parametrize("seed", range(12))
def test_what_is_acknowledged_stays_and_nobody_is_told_what_is_not_so_any_more(seed: int):
    play(both_acts, seed, masters=2 + seed % 2)


@pytest.mark.parametrize("seed", range(6))
def test_tables_that_are_set_aside_come_back_once_whoever_serves(seed: int):
    play(both_acts, 200 + seed, recalls=True)


@pytest.mark.parametrize("seed", range(3))
def test_five_journal_nodes_bear_the_trouble_as_well(seed: int):
    play(both_acts, 100 + seed, journals=5)
