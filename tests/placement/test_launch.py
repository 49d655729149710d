"""The roles that `ebla up` expects."""

from __future__ import annotations

from ebla.placement.config import configure
from ebla.placement.deploy.roles import plan_roles
from ebla.placement.deploy.slots import Host, Seats, Survey
from ebla.placement.launch import expected


def test_a_server_on_a_missing_host_is_expected_if_its_actor_exists() -> None:
    available = Survey((Host("a", "1", "10.0.0.1"), Host("b", "2", "10.0.0.2")))
    config = configure({"data_dir": "/tmp/ebla", "masters": 1, "journals": 0})
    plan = plan_roles(config, Seats(("gone",), ("a", "b", "c", "gone")), "")
    found = [spec.address for spec in expected(plan, available, ["tablet-server/c", "tablet-server/a"])]
    assert found == ["master/0", "tablet-server/a", "tablet-server/b", "tablet-server/c"]
