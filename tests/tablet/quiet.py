"""Groups that become quiescent soon, and waiting for that."""

from __future__ import annotations

from typing import Any

from tests.tablet.copies import until
from tests.tablet.harness import OPTIONS, TABLET, Group

QUIESCES: dict[str, Any] = {"quiesce_after_s": 0.5}
QUIET_S = 3.0  # enough for every group to become quiescent
HEARTBEAT_S, ELECTION_S, LEASE_S = (
    OPTIONS[name] for name in ("leader_heartbeat_s", "election_s_min", "lease_s")
)


def quiescent(group: Group, *hosts: str, tablet: str = TABLET) -> bool:
    return all(group.replica(host, tablet).core.stance.quiescent for host in hosts or group.hosts)


async def until_quiescent(group: Group, *hosts: str, tablet: str = TABLET) -> None:
    """Wait until the replicas on these hosts (all) are quiescent."""
    await until(group, lambda: quiescent(group, *hosts, tablet=tablet), "quiescent", 10.0)
