"""The way to a deployment: what is checked before anything is reached, and what a start shows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

import ebla
from ebla import deployment
from ebla.cli.frame import connection, quiet
from ebla.cli.frame.ui import Common, Ui
from ebla.placement import connection as placement
from ebla.placement import ray_private
from ebla.placement.local.cluster import LocalCluster
from ebla.show import progress as show_progress


def test_a_command_refuses_an_address_as_name_before_anything_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def connect_ray(address: str | None) -> NoReturn:
        raise AssertionError(f"{address} is reached")

    async def work(cluster: Any) -> None: ...

    monkeypatch.setattr(quiet, "before_ray", lambda verbose: None)
    monkeypatch.setattr(ray_private, "send_own_types_only", lambda: None)
    monkeypatch.setattr(placement, "connect_ray", connect_ray)
    with pytest.raises(ebla.InvalidArgument, match="`--address host:6379`"):
        connection.connected(Ui(Common(name="host:6379")), work)


class Recorded:
    """A display that keeps the texts of works, and whether they are removed."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.removed: list[Any] = []
        self.updated = threading.Event()

    def add(self, title: str, since_s: float = 0.0) -> str:
        return title

    def update(self, work: str, text: str, done: float, total: float | None) -> None:
        if text:
            self.texts.append(f"{work}: {text}")
            self.updated.set()

    def remove(self, work: str) -> None:
        self.removed.append(work)


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ((), "there is no deployment 'ebla' in the Ray cluster at 10.0.0.5:6379: start it with `ebla up`"),
        (("tablet-server/host-2",), "no master of deployment 'ebla' runs in the Ray cluster at"),
    ],
)
def test_a_deployment_of_which_no_master_runs_is_not_called_absent(
    monkeypatch: pytest.MonkeyPatch, roles: tuple[str, ...], words: str
) -> None:
    monkeypatch.setattr("ebla.placement.connection.connect_ray", lambda address: "10.0.0.5:6379")
    monkeypatch.setattr(deployment, "roles_of", lambda name: roles)
    with pytest.raises(ebla.Unavailable, match=words):
        deployment.reach("ebla", None)


@pytest.mark.parametrize(("progress", "terminal"), [(True, True), (True, False), (False, True)])
def test_local_shows_the_steps_of_its_start_on_a_terminal_unless_progress_is_off(
    progress: bool, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = progress and terminal

    def start(hosts: int, progress: Callable[[str], None], **options: Any) -> NoReturn:
        progress(f"starting the head of {hosts} nodes")
        assert not shown or display.updated.wait(600)
        raise ebla.Unavailable("it does not start")

    display = Recorded()
    monkeypatch.setattr(LocalCluster, "start", start)
    monkeypatch.setattr(deployment, "display_of_calls", lambda: display if terminal else None)
    monkeypatch.setattr(show_progress, "SHOW_AFTER_S", 0.0)
    with pytest.raises(ebla.Unavailable, match="does not start"):
        ebla.local(3, progress=progress)
    assert set(display.texts) == {"start ebla: starting the head of 3 nodes"} if shown else not display.texts
    assert display.removed == ["start ebla"] * shown
