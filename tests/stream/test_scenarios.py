"""Every tests/scenarios/*.txt is exact. See scenario.py for the language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pacifica.scenario import Stage as PacificaStage
from tests.raft.scenario import Stage as RaftStage
from tests.stream.scenario import Stage, play

FOLDER = Path(__file__).parents[1] / "scenarios"
STAGES: dict[str, type[Stage[Any]]] = {"raft": RaftStage, "pacifica": PacificaStage}
FILES = sorted(FOLDER.iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_has_exactly_its_transcript(path: Path, rewrite: bool) -> None:
    played = play(path, STAGES[path.stem.partition("_")[0]]())
    if rewrite:
        path.write_text(played)
    assert played == path.read_text(), "run pytest tests/stream --rewrite, and commit what you understand"


@pytest.mark.parametrize("protocol", STAGES)
def test_there_are_scenarios(protocol: str) -> None:
    assert sum(path.stem.startswith(f"{protocol}_") for path in FILES) >= 12
