"""`ebla` on simulated deployments: of real roles, of several masters, and of toys."""

from __future__ import annotations

import pytest

from ebla.chaos.simulation.loop import run
from tests.cli.repair_stage import SEED, RepairStage, first_tablet, on_toys
from tests.cli.stage import Cli, start, start_group
from tests.master.healed import follower, leader, spare


@pytest.fixture
def ebla(monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(monkeypatch, start)


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(monkeypatch, start_group)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Cli:
    return on_toys(monkeypatch)


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
