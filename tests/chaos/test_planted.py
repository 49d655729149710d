"""The simulation finds every planted defect. `make test` plants every fourth one, `make sweep` all of them; then
tests/chaos/test_simulated_runs.py makes the same runs without the defects."""

from __future__ import annotations

import re
from inspect import getattr_static, isfunction, signature
from pathlib import Path

import pytest

from ebla.chaos import soak
from ebla.chaos.defects.defect import Defect
from ebla.chaos.defects.planted import DEFECTS, defect, planted
from ebla.storage.errors import InvalidArgument
from tests.chaos import reseed
from tests.sweeps import FACTOR

pytestmark = pytest.mark.timeout(3600)  # a busy machine is no defect

PLANTED = list(DEFECTS) if FACTOR > 1 else list(DEFECTS)[::4]


@pytest.fixture(scope="module")
def hunts() -> list[soak.Hunt]:
    with soak.workers(2) as pools:
        return list(soak.hunts([defect(name) for name in PLANTED], pools))


def test_the_planted_defects_are_found(hunts: list[soak.Hunt]) -> None:
    assert [hunt for hunt in hunts if hunt.seed is None] == []


def test_the_table_names_the_seeds_that_find_the_defects(hunts: list[soak.Hunt]) -> None:
    moved = {hunt.defect: hunt.seed for hunt in hunts if hunt.seed not in (None, defect(hunt.defect).seed)}
    assert moved == {}, (
        f"write them into the tables: .venv/bin/python -m tests.chaos.reseed {' '.join(moved)}"
    )


def test_reseed_writes_moved_seeds_into_the_modules_and_the_page() -> None:
    seeds = {"vote-twice": 1234, "log-trimmed-early": 17, "fence-skipped": 12345, "given-up-leads-on": 44}
    modules = "".join(path.read_text() for path in reseed.MODULES)
    of_defect = re.compile(r"seed=([0-9]+)[^()]*\)\n(?:async )?def (\w+)\(")
    before = {name.replace("_", "-"): seed for seed, name in of_defect.findall(modules)}
    after = {
        name.replace("_", "-"): seed for seed, name in of_defect.findall(reseed.with_seeds(modules, seeds))
    }
    assert len(before) > 50
    assert after == before | {name: str(seed) for name, seed in seeds.items()}
    page = reseed.page_with_seeds(reseed.PAGE.read_text(), seeds)
    assert "| elections | 1234 | 60 |" in page and "| logs | 17 | 60 |" in page
    assert len(set(page.splitlines()) - set(reseed.PAGE.read_text().splitlines())) == len(seeds)


def test_every_defect_has_a_description_and_a_seed_within_its_bound() -> None:
    assert len(DEFECTS) >= 20
    assert all(
        isinstance(each, Defect) and each.what and each.seeds_max > each.seed for each in DEFECTS.values()
    )
    with pytest.raises(InvalidArgument, match="there are acknowledge-before-commit"):
        defect("unheard-of")


def test_every_defect_takes_the_arguments_of_the_function_that_it_replaces() -> None:
    for name, each in DEFECTS.items():
        for where, what, replacement in each.swaps():
            original = getattr_static(where, what)
            if isfunction(original):
                taken = signature(original).parameters.values()
                named = [one.name for one in taken if one.kind is one.KEYWORD_ONLY]
                others = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in taken)
                try:
                    signature(replacement).bind(*range(others), **dict.fromkeys(named))
                except TypeError as error:
                    pytest.fail(f"{name} does not fit {what}{signature(original)}: {error}")


def test_a_planted_defect_is_removed_when_its_block_ends() -> None:
    before = {
        name: [getattr_static(where, what) for where, what, _ in each.swaps()]
        for name, each in DEFECTS.items()
    }
    for name, each in DEFECTS.items():
        with planted(name):
            assert [getattr_static(where, what) for where, what, _ in each.swaps()] != before[name]
        assert [getattr_static(where, what) for where, what, _ in each.swaps()] == before[name]


def test_the_docs_have_every_defect_in_their_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    for each in DEFECTS.values():
        row = f"| {each.name} | {each.what} | {each.scenario} | {each.seed} | {each.seeds_max} |"
        assert row in page, row
