"""Random faults of masters and journal nodes."""

from __future__ import annotations

import pytest

from tests.master.failover_workload import act_one, act_two
from tests.master.group_stage import GroupStage, play


async def both_acts(stage: GroupStage) -> None:
    await act_two(stage, await act_one(stage))


@pytest.mark.parametrize("seed", range(12))
def test_acknowledged_changes_stay_and_no_answer_is_stale(seed: int):
    play(both_acts, seed, masters=2 + seed % 2)


@pytest.mark.parametrize("seed", range(6))
def test_dropped_tables_can_be_recalled_once_at_any_master(seed: int):
    play(both_acts, 200 + seed, recalls=True)


@pytest.mark.parametrize("seed", range(3))
def test_five_journal_nodes_tolerate_the_same_faults(seed: int):
    play(both_acts, 100 + seed, journals=5)
