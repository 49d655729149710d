"""The heartbeats of a tablet server to several masters, one of which is active."""

from __future__ import annotations

from ebla.actors import messages as m
from ebla.actors.errors import NotActive
from ebla.actors.world import Role, World, rpc
from tests.tablet.harness import Group, simulated

MASTERS = ("master/0", "master/1", "master/2")


class ScriptedMaster(Role):
    """`beats`: the heartbeats that it has got."""

    active = False
    beats = 0

    def __init__(self, world: World) -> None:
        self.world = world

    async def start(self) -> None:
        pass

    @rpc
    async def heartbeat(self, request: m.HeartbeatRequest) -> m.HeartbeatReply:
        self.beats += 1
        if not self.active:
            raise NotActive("it is a standby", active=None)
        return m.HeartbeatReply(m.ServerInstance("master", 1, "start"), False, False)


async def masters_of(group: Group) -> list[ScriptedMaster]:
    """The first one is active."""
    for address in MASTERS:
        await group.cluster.start(address, ScriptedMaster)
    masters = [group.cluster.role(address) for address in MASTERS]
    masters[0].active = True
    await group.sleep(5.0)
    return masters


async def beats_within(group: Group, masters: list[ScriptedMaster], seconds: float) -> list[int]:
    before = [master.beats for master in masters]
    await group.sleep(seconds)
    return [master.beats - had for master, had in zip(masters, before, strict=True)]


@simulated(hosts=("host-a",), masters=MASTERS)
async def test_a_standby_gets_every_fourth_heartbeat(group: Group) -> None:
    active, *standbys = await beats_within(group, await masters_of(group), 40.0)
    assert 79 <= active <= 81 and all(19 <= beats <= 21 for beats in standbys)


@simulated(hosts=("host-a",), masters=MASTERS)
async def test_a_new_active_master_gets_heartbeats_at_once(group: Group) -> None:
    """The former one hands over; then the next one is killed, so that its calls fail."""
    masters = await masters_of(group)
    masters[0].active, masters[1].active = False, True
    heartbeat_s = group.server("host-a").options.heartbeat_s
    assert (await beats_within(group, masters, 2 * heartbeat_s + 0.1))[1] >= 1
    await group.sleep(5.0)
    group.cluster.crash(MASTERS[1])
    masters[2].active = True
    assert (await beats_within(group, masters, 2 * heartbeat_s + 0.1))[2] >= 1
