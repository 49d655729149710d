"""The random faults find every known mistake, so they would find others."""

from __future__ import annotations

from itertools import chain, product

import pytest

from ebla.storage.errors import InvalidArgument
from tests.pacifica.faults import survive
from tests.pacifica.mistakes import AT_ONCE, BEHIND_THE_WAIT, MISTAKES

SEEDS_MAX = 200
GROUPS = (("abc", "", False), ("abc", "de", False), ("abc", "d", True))
FOUND = {  # a seed that finds it, if none of the first ones does; it is tried first
    "a request that may be granted does not count": 11,
    "an order counts in any lease": 5,
    "a lease has no number": 5,
    "an old copy leads, because no ballot is settled": 76,
    "an order goes to another process than its ballot is for": 43,
    "an order leaves while another primary is being appointed": 121,
    "a primary asks for its successor while it still reads": 195,
    "the next process of a successor leads in its place": 123,
    "a primary that a new master has not heard of is replaced": 52,
    "a primary that has committed nothing of its own verifies a copy": 54,
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_known_mistake_breaks_a_promise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for where, attribute, mistake in (MISTAKES[name], *(AT_ONCE if name in BEHIND_THE_WAIT else ())):
        monkeypatch.setattr(where, attribute, mistake)
    for seed, (voters, spares, loses) in product(chain([FOUND.get(name, 0)], range(SEEDS_MAX)), GROUPS):
        try:
            survive(seed, voters, spares, loses=loses)
        except (AssertionError, InvalidArgument):
            return
    pytest.fail(f"no promise is broken by {SEEDS_MAX} seeds: {name}")
