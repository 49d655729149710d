"""The promises of a journal node, request by request."""

from __future__ import annotations

import pytest

from tests.journal.refusals import SCENARIOS
from tests.journal.stage import play


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_node_keeps_its_promise(scenario):
    for seed in range(2):
        play(scenario, seed)
