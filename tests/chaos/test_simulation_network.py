"""A call through the simulated network ends in an answer or in one of two failures."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import msgspec
import pytest

from ebla.actors.errors import NotDelivered, NotFound, OutcomeUnknown
from ebla.actors.world import Role, World, rpc
from ebla.chaos.simulation.loop import run
from ebla.chaos.simulation.network import NodeNetwork
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.storage.errors import InvalidArgument
from tests.staged import staged

HERE, THERE = "echo/host-a", "echo/host-b"


class Say(msgspec.Struct, frozen=True):
    text: str
    wait_s: float = 0.0


class Said(msgspec.Struct, frozen=True):
    text: str
    times: int


class Relay(msgspec.Struct, frozen=True):
    address: str


class Echo(Role):
    """Counts its work, including requests whose answers are lost."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.said: list[str] = []

    @rpc
    async def say(self, request: Say) -> Said:
        self.said.append(request.text)
        await self.world.clock.sleep(request.wait_s)
        return Said(request.text, len(self.said))

    @rpc
    async def fail(self, request: Say) -> Said:
        raise NotFound("there is no such thing", what=request.text)

    @rpc
    async def relay(self, request: Relay) -> Said:
        return await self.world.network.call(request.address, "say", Say("relayed"), Said, 0.5)


@dataclass
class Stage:
    """Two roles, and the network of a client."""

    cluster: SimulatedCluster
    network: NodeNetwork
    here: Echo
    there: Echo


def play(scenario) -> None:
    async def main():
        cluster = SimulatedCluster()
        roles = [await cluster.start(address, Echo) for address in (HERE, THERE)]
        await scenario(Stage(cluster, cluster.client_world("client").network, *roles))

    run(main())


def call(network, text: str = "hello", address: str = HERE, timeout_s: float = 1.0, wait_s: float = 0.0):
    return network.call(address, "say", Say(text, wait_s), Said, timeout_s)


@staged(play)
async def test_a_call_returns_an_answer_or_raises_a_typed_error(stage: Stage) -> None:
    assert await call(stage.network) == Said("hello", 1)
    with pytest.raises(NotFound, match="no such thing") as failure:
        await stage.network.call(HERE, "fail", Say("x"), Said, 1.0)
    assert failure.value.what == "x"
    with pytest.raises(InvalidArgument, match="no method 'sing'"):
        await stage.network.call(HERE, "sing", Say("x"), Said, 1.0)


@staged(play)
async def test_messages_take_time_and_may_overtake_each_other(stage: Stage) -> None:
    begin = stage.cluster.loop.time()
    await asyncio.gather(*(call(stage.network, str(n)) for n in range(50)))
    assert stage.cluster.loop.time() > begin
    said = stage.here.said
    assert sorted(said, key=int) == [str(n) for n in range(50)] != said


@staged(play)
async def test_an_unknown_address_is_not_delivered(stage: Stage) -> None:
    with pytest.raises(NotDelivered, match="no role echo/host-z"):
        await call(stage.network, address="echo/host-z")
    await stage.cluster.stop(THERE)
    with pytest.raises(NotDelivered):
        await call(stage.network, address=THERE)


@staged(play)
async def test_after_a_timeout_the_outcome_is_unknown_and_the_request_continues(stage: Stage) -> None:
    with pytest.raises(OutcomeUnknown, match=r"within 0\.5 s"):
        await call(stage.network, wait_s=2.0, timeout_s=0.5)
    await asyncio.sleep(2)
    assert stage.here.said == ["hello"]


@pytest.mark.parametrize("one_way", [True, False])
@staged(play)
async def test_a_cut_loses_requests_or_answers_until_it_heals(stage: Stage, one_way) -> None:
    stage.cluster.network.cut(HERE, "client", one_way=one_way)
    with pytest.raises(OutcomeUnknown):
        await call(stage.network)
    assert stage.here.said == (["hello"] if one_way else [])
    assert await call(stage.network, address=THERE)
    assert (await stage.here.world.network.call(THERE, "say", Say("x"), Said, 1.0)).text == "x"
    stage.cluster.network.heal()
    assert await call(stage.network)


@staged(play)
async def test_an_isolated_host_reaches_only_itself(stage: Stage) -> None:
    stage.cluster.network.isolate("host-a")
    for caller, address in (
        (stage.network, HERE),
        (stage.here.world.network, THERE),
        (stage.there.world.network, HERE),
    ):
        with pytest.raises(OutcomeUnknown):
            await call(caller, address=address)
    assert await call(stage.here.world.network, address=HERE)
    assert await call(stage.network, address=THERE)
    assert stage.cluster.network.connected("other/host-a", HERE)


@staged(play)
async def test_a_call_to_a_dead_node_never_runs(stage: Stage) -> None:
    stage.cluster.crash(HERE)
    ends = await asyncio.gather(*(call(stage.network) for _ in range(40)), return_exceptions=True)
    assert stage.here.said == []
    ends = Counter(type(end) for end in ends)
    assert set(ends) == {NotDelivered, OutcomeUnknown}


@staged(play)
async def test_a_crash_during_a_request_gives_outcome_unknown_before_the_timeout(stage: Stage) -> None:
    begin = stage.cluster.loop.time()
    waiting = asyncio.ensure_future(call(stage.network, wait_s=5.0, timeout_s=60.0))
    await asyncio.sleep(1.0)
    stage.cluster.crash(HERE)
    with pytest.raises(OutcomeUnknown, match="died with the request"):
        await waiting
    assert stage.cluster.loop.time() - begin < 2.0


@staged(play)
async def test_a_failure_of_a_relayed_call_is_outcome_unknown(stage: Stage) -> None:
    assert (await stage.network.call(HERE, "relay", Relay(THERE), Said, 5.0)).text == "relayed"
    with pytest.raises(OutcomeUnknown):
        await stage.network.call(HERE, "relay", Relay("echo/missing"), Said, 5.0)


@staged(play)
async def test_losses_and_repeats_have_the_given_probability(stage: Stage) -> None:
    stage.cluster.network.drop_probability = 0.3
    ends = await asyncio.gather(*(call(stage.network, "lossy") for _ in range(200)), return_exceptions=True)
    answered = sum(isinstance(end, Said) for end in ends)
    assert 60 < answered < 140  # 49 % of both ways
    assert stage.here.said.count("lossy") > answered  # some answers were lost after the work was done
    stage.cluster.network.drop_probability = 0.0
    stage.cluster.network.repeat_probability = 0.5
    await asyncio.gather(*(call(stage.network, "twice") for _ in range(200)))
    await asyncio.sleep(1)
    assert 250 < stage.here.said.count("twice") < 350


def test_nodes_share_no_objects():
    class Keeper(Echo):
        @rpc
        async def keep(self, request: Say) -> Said:
            self.kept = request
            return Said(request.text, 0)

    async def main():
        cluster = SimulatedCluster()
        keeper = await cluster.start("keeper/host-a", Keeper)
        request = Say("mine")
        await cluster.client_world("client").network.call("keeper/host-a", "keep", request, Said, 1.0)
        assert keeper.kept == request and keeper.kept is not request

    run(main())
