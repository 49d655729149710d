"""Random faults of masters and journal nodes. `make sweep` has more of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.master.failover_workload import act_one, act_two
from tests.master.group_stage import GroupStage, play
from tests.sweeps import seeds


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        *((seed, {"masters": 2 + seed % 2}) for seed in seeds(5)),
        *((seed, {"recalls": True}) for seed in seeds(3, 200)),
        *((seed, {"journals": 5}) for seed in seeds(2, 100)),
    ],
)
def test_acknowledged_changes_stay_and_no_answer_is_stale(seed: int, options: dict[str, Any]):
    """Also of tables that are dropped and recalled, and with five journal nodes."""

    async def both_acts(stage: GroupStage) -> None:
        await act_two(stage, await act_one(stage))

    play(both_acts, seed, **options)
