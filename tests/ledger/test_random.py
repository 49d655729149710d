"""Random histories of ledgers keep every promise."""

from __future__ import annotations

import pytest

from tests.ledger.histories import history
from tests.ledger.stage import play
from tests.sweeps import seeds


@pytest.mark.parametrize("seed", seeds(8))
def test_random_histories_of_a_ledger_keep_every_promise(seed: int) -> None:
    play(history, seed, count=3 + seed % 4)
