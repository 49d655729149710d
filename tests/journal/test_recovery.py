"""What a new writer finds is what the last one was told to be durable, whoever answers."""

from __future__ import annotations

import pytest

from tests.journal.recoveries import SCENARIOS
from tests.journal.stage import play


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_in_a_recovery(scenario):
    for seed in range(3):
        play(scenario, seed)
