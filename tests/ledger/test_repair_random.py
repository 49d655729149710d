"""Random histories of repairs keep every promise."""

from __future__ import annotations

import pytest

from tests.ledger.repair_histories import OPTIONS, history
from tests.ledger.repair_stage import play
from tests.sweeps import seeds


@pytest.mark.parametrize("seed", seeds(4))
def test_random_histories_of_repairs_keep_every_promise(seed: int) -> None:
    play(history, seed, count=6, **OPTIONS)
