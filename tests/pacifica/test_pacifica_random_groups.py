"""Random faults of a PacificA group by seed. Repeat one seed with `survive(seed, voters)`."""

from __future__ import annotations

import pytest

from ebla.storage.logs.entries import CONFIG
from tests.pacifica.faults import recover_from_disasters, survive
from tests.pacifica.mistakes import AT_ONCE
from tests.sweeps import seeds


@pytest.mark.parametrize("min_members", [1, 2, 3])
def test_three_replicas_keep_every_promise_under_random_faults(min_members: int) -> None:
    groups = [survive(seed, "abc", min_members=min_members) for seed in seeds(12)]
    assert sum(len(group.oracle.committed) for group in groups) > 20 * len(groups)
    assert sum(group.oracle.reads for group in groups) > 100 * len(groups)
    assert sum(group.master.stored.index for group in groups) > 3 * len(groups)


@pytest.mark.parametrize(("voters", "min_members"), [("abcde", 3), ("ab", 1), ("a", 1)])
def test_groups_of_other_sizes_keep_every_promise_under_random_faults(voters: str, min_members: int) -> None:
    for seed in seeds(6):
        survive(seed, voters, min_members=min_members)


def test_a_group_keeps_every_promise_while_its_members_change() -> None:
    groups = [survive(seed, "abc", "de") for seed in seeds(10)]
    changes = sum(entry.kind == CONFIG for group in groups for entry in group.oracle.committed)
    assert changes > 50


def test_a_group_keeps_every_promise_while_disks_are_replaced() -> None:
    for seed in seeds(10):
        survive(seed, "abc", "d", loses=True)


def test_while_a_member_knows_what_is_committed_none_relies_on_the_choice_of_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for where, attribute, other in AT_ONCE:
        monkeypatch.setattr(where, attribute, other)
    for seed in seeds(10):
        survive(seed, "abc", "d", loses=True)


def test_a_group_keeps_what_the_survivor_of_a_forced_configuration_has() -> None:
    groups = [recover_from_disasters(seed) for seed in seeds(12)]
    assert sum(forced for _, forced in groups) > len(groups)
    assert sum(group.master.stored.unsafe for group, _ in groups) > len(groups)
    assert any(group.oracle.lost for group, _ in groups)


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = survive(7, "abc"), survive(7, "abc")
    assert first.transcript == second.transcript
    assert first.random.random() == second.random.random()
