"""Every tests/scenarios/pacifica_*.txt is exact. See scenario.py for the language."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pacifica.scenario import Stage
from tests.stream.scenario import play

FILES = sorted((Path(__file__).parents[1] / "scenarios").glob("pacifica_*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_has_exactly_its_transcript(path: Path, rewrite: bool) -> None:
    played = play(path, Stage())
    if rewrite:
        path.write_text(played)
    assert played == path.read_text(), "run pytest tests/pacifica --rewrite, and commit what you understand"
