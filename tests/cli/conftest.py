"""`ebla` for tests: the command line on a simulated deployment (stage.py), and on one of toys (repair_stage.py)."""

from __future__ import annotations

import pytest

from ebla.chaos.simulation.loop import run
from tests.cli.repair_stage import SEED, Repairing, RepairStage, first_tablet
from tests.cli.stage import Cli
from tests.master.healed import follower, leader, spare


@pytest.fixture
def ebla(monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(monkeypatch)


@pytest.fixture
def repairing(monkeypatch: pytest.MonkeyPatch) -> Repairing:
    return Repairing(monkeypatch)


@pytest.fixture(scope="module")
def tablet() -> str:
    return first_tablet()


@pytest.fixture(scope="module")
def places(tablet: str) -> dict[str, str]:
    """The leader, a follower and the host without a replica, the same in every run."""
    found: dict[str, str] = {}

    async def main() -> None:
        stage = RepairStage()
        await stage.start("abcd")
        found["leader"], found["spare"] = leader(stage, tablet), spare(stage, tablet)
        found["follower"] = follower(stage, tablet)

    run(main(), SEED)
    return found
