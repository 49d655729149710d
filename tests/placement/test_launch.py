"""`ebla up` and `ebla down`: what they refuse, what they start and end, and what they warn of."""

from __future__ import annotations

from ebla.actors.ray_shell import RUNNING
from ebla.placement import launch
from ebla.placement.asking import RoleStatus
from ebla.placement.journal import journals


def test_a_deployment_without_an_active_master_is_not_ready() -> None:
    roles = (RoleStatus("master/0", "a", RUNNING),)
    report = launch.UpReport("t", "n", "/d", (), (), roles, {}, ())
    assert report.ready
    assert not launch.UpReport("t", "n", "/d", (), (), roles, {}, (journals.INACTIVE,)).ready
