"""Nodes of a simulated cluster crash without cleanup, restart from their disks, and report failures."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ebla.actors.deadlines import timeout
from ebla.actors.errors import NetworkError, NotRunning
from ebla.actors.messages import Empty
from ebla.actors.world import Role, World, new_id, rpc
from ebla.chaos.simulation.loop import run
from ebla.chaos.simulation.world import NodeCrashed, RoleFailed, SimulatedCluster
from ebla.storage.environment import Put
from ebla.storage.errors import Damaged, DiskFailed
from tests.staged import simulated

ADDRESS = "store/host-a"


class Pair(msgspec.Struct, frozen=True):
    key: bytes
    value: bytes


class Count(msgspec.Struct, frozen=True):
    rows: int


class Store(Role):
    """A durable map with a heartbeat, and a diary in memory."""

    diary: list[str]

    def __init__(self, world: World) -> None:
        self.world = world
        self.environment = None
        self.diary = []

    async def start(self) -> None:
        self.instance = await self.world.disk.open_instance(new_id(self.world.random))
        self.environment = await self.world.disk.open_environment("data", ["t"], create=self.instance.created)
        self.world.spawn(self.beat(), "beat")

    async def stop(self) -> None:
        self.diary.append("stops")

    async def beat(self) -> None:
        try:
            while True:
                await self.world.clock.sleep(0.5)
                self.diary.append("beat")
        finally:
            self.diary.append("beat ends")

    @rpc
    async def put(self, request: Pair) -> Count:
        if self.environment is None:
            raise NotRunning("the store is starting", state="starting")
        await self.environment.commit([Put("t", [(request.key, request.value)])])
        return Count(self.environment.count("t"))

    @rpc
    async def break_down(self, request: Empty) -> Count:
        raise ZeroDivisionError("a defect in a handler")

    @rpc
    async def break_behind(self, request: Empty) -> Count:
        self.world.spawn(self.defect(), "defect")
        return Count(0)

    @rpc
    async def give_up(self, request: Empty) -> Count:
        self.world.fail(DiskFailed("a sync failed"))
        await self.world.clock.sleep(0)
        self.diary.append("unreachable")
        return Count(0)

    async def defect(self) -> None:
        await self.world.clock.sleep(0.1)
        raise ZeroDivisionError("a defect in the background")


def put(world: World, key: bytes):
    return world.network.call(ADDRESS, "put", Pair(key, b"v"), Count, 1.0)


@simulated
async def test_a_crash_runs_no_cleanup_and_a_restart_finds_acknowledged_data() -> None:
    cluster = SimulatedCluster()
    client = cluster.client_world("client")
    first = await cluster.start(ADDRESS, Store)
    for n in range(10):
        await put(client, b"%d" % n)
    cluster.crash(ADDRESS)
    assert not cluster.alive(ADDRESS)
    await asyncio.sleep(5)
    assert set(first.diary) <= {"beat"}
    second = await cluster.restart(ADDRESS)
    assert second is not first and cluster.role(ADDRESS) is second
    assert (second.instance.uuid, second.instance.seqno) == (first.instance.uuid, 2)
    assert (await put(client, b"10")).rows == 11


@simulated
async def test_restarting_a_live_node_crashes_it_first() -> None:
    cluster = SimulatedCluster()
    first = await cluster.start(ADDRESS, Store)
    await cluster.restart(ADDRESS)
    await asyncio.sleep(2)
    assert "beat ends" not in first.diary and cluster.role(ADDRESS).instance.seqno == 2


@simulated
async def test_a_graceful_stop_stops_the_role_and_then_its_tasks() -> None:
    cluster = SimulatedCluster()
    role = await cluster.start(ADDRESS, Store)
    await cluster.stop(ADDRESS)
    assert role.diary == ["stops", "beat ends"] and cluster.state(ADDRESS).holder is None
    await cluster.start(ADDRESS, Store)


def test_a_failure_in_stop_is_a_failure_of_the_role():
    class FailsToStop(Store):
        async def stop(self) -> None:
            raise DiskFailed("sync failed")

    async def main(cluster: SimulatedCluster) -> None:
        await cluster.start(ADDRESS, FailsToStop)
        with pytest.raises(NodeCrashed, match="failed while it stopped"):
            await cluster.stop(ADDRESS)
        assert not cluster.alive(ADDRESS) and [each.where for each in cluster.failures] == ["stop"]

    async def excused():
        await main(
            SimulatedCluster(tolerates=lambda address, error, directory: isinstance(error, DiskFailed))
        )

    async def unexcused():
        await main(SimulatedCluster())

    run(excused())
    with pytest.raises(RoleFailed, match="failed in stop"):
        run(unexcused())


@simulated
async def test_a_second_graceful_stop_waits_for_the_first() -> None:
    class SlowToStop(Store):
        async def stop(self) -> None:
            self.diary.append("stops")
            await self.world.clock.sleep(1.0)
            self.diary.append("stopped")

    cluster = SimulatedCluster()
    role = await cluster.start(ADDRESS, SlowToStop)
    first = asyncio.ensure_future(cluster.stop(ADDRESS))
    await asyncio.sleep(0.1)
    await cluster.stop(ADDRESS)
    assert [each for each in role.diary if each != "beat"] == ["stops", "stopped", "beat ends"]
    assert not cluster.alive(ADDRESS)
    async with timeout(60):
        await first


@simulated
async def test_requests_during_a_start_are_answered() -> None:
    cluster = SimulatedCluster()
    client = cluster.client_world("client")
    cluster.state(ADDRESS).commit_s = (1.0, 1.0)
    cluster.launch(ADDRESS, Store)
    with pytest.raises(NotRunning):
        await put(client, b"early")
    await asyncio.sleep(3)
    cluster.state(ADDRESS).commit_s = (0.001, 0.001)
    assert (await put(client, b"later")).rows == 1


@simulated
async def test_a_crash_during_a_start_is_raised_to_the_waiter() -> None:
    cluster = SimulatedCluster()
    starting = asyncio.ensure_future(cluster.start(ADDRESS, Store))
    await asyncio.sleep(0.000_01)
    cluster.crash(ADDRESS)
    with pytest.raises(NodeCrashed):
        await starting


def test_a_failed_start_raises_to_its_waiter_or_ends_the_run():
    async def prepare():
        cluster = SimulatedCluster()
        await cluster.start(ADDRESS, Store)
        cluster.crash(ADDRESS)
        cluster.state(ADDRESS).lose_environment("data")
        return cluster

    async def awaited():
        cluster = await prepare()
        with pytest.raises(Damaged):
            await cluster.restart(ADDRESS)
        assert not cluster.alive(ADDRESS)

    async def launched():
        (await prepare()).launch(ADDRESS, Store)
        await asyncio.sleep(1)

    run(awaited())
    with pytest.raises(RoleFailed, match=r"failed in start.*Damaged"):
        run(launched())


@pytest.mark.parametrize(
    ("method", "where", "error"),
    [
        ("break_down", "break_down", ZeroDivisionError),
        ("break_behind", "defect", ZeroDivisionError),
        ("give_up", "world.fail", DiskFailed),
    ],
)
def test_an_unexpected_failure_of_a_role_ends_the_run(method, where, error):
    async def main(expected):
        cluster = SimulatedCluster()
        client = cluster.client_world("client")
        role = await cluster.start(ADDRESS, Store)
        if expected:
            cluster.expect_failure(ADDRESS)
        try:
            await client.network.call(ADDRESS, method, Empty(), Count, 1.0)
        except NetworkError:
            assert method != "break_behind"
        await asyncio.sleep(10)
        assert not cluster.alive(ADDRESS) and "unreachable" not in role.diary
        return [(failure.address, failure.where, type(failure.error)) for failure in cluster.failures]

    assert run(main(expected=True)) == [(ADDRESS, where, error)]
    with pytest.raises(RoleFailed, match=where) as failure:
        run(main(expected=False))
    assert isinstance(failure.value.__cause__, error)


@simulated
async def test_a_server_with_a_lost_disk_returns_as_a_new_server() -> None:
    cluster = SimulatedCluster()
    first = await cluster.start(ADDRESS, Store)
    cluster.crash(ADDRESS)
    cluster.lose_disk(ADDRESS)
    second = await cluster.restart(ADDRESS)
    assert second.instance.created and second.instance.uuid != first.instance.uuid


@simulated
async def test_every_node_has_its_own_clock() -> None:
    cluster = SimulatedCluster()
    loop = cluster.loop
    fast, plain = cluster.clock("fast"), cluster.clock("plain")
    fast.set_rate(2.0)
    begin_s, begin = loop.time(), (fast.monotonic(), plain.monotonic())
    await fast.sleep(10)
    assert loop.time() - begin_s == pytest.approx(5, abs=0.001)
    assert fast.monotonic() - begin[0] == pytest.approx(10, abs=0.001)
    assert plain.monotonic() - begin[1] == pytest.approx(5, abs=0.001)
    assert begin[0] != begin[1]
    before, wall_us = fast.monotonic(), fast.wall_us()
    fast.set_rate(0.5)
    fast.wall_offset_us = -3_600_000_000
    assert fast.monotonic() == pytest.approx(before) and fast.wall_us() < wall_us - 3_599_000_000
    assert cluster.clock("fast") is fast


async def turbulent_life() -> str:
    """The digest of a run with clients, losses, crashes and restarts."""
    cluster = SimulatedCluster()
    loop = cluster.loop
    addresses = [f"store/host-{n}" for n in range(4)]
    for address in addresses:
        await cluster.start(address, Store)
    cluster.network.drop_probability = 0.05
    outcomes: list[str] = []

    async def client(name: str) -> None:
        world = cluster.client_world(name)
        for n in range(40):
            address = world.random.choice(addresses)
            try:
                count = await world.network.call(address, "put", Pair(b"%d" % n, b"v"), Count, 0.2)
                outcomes.append(f"{name} {n} {count.rows}")
            except (NetworkError, NotRunning) as error:
                outcomes.append(f"{name} {n} {type(error).__name__}")

    async def nemesis() -> None:
        for _ in range(10):
            await asyncio.sleep(loop.random.uniform(0, 0.2))
            address = loop.random.choice(addresses)
            cluster.crash(address)
            await asyncio.sleep(loop.random.uniform(0, 0.1))
            await cluster.restart(address)

    await asyncio.gather(nemesis(), *(client(f"client-{n}") for n in range(3)))
    loop.trace(*outcomes)
    return f"{loop.digest()} {loop.steps} {loop.time()!r}"


def test_a_seed_gives_one_history_in_any_process_with_any_hash_seed():
    script = (
        "from ebla.chaos.simulation.loop import run\n"
        "from tests.chaos.test_simulation_world import turbulent_life\n"
        "print([run(turbulent_life(), seed) for seed in (7, 8)])\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    printed = [process.communicate()[0].strip() for process in processes]
    here = [run(turbulent_life(), seed) for seed in (7, 8)]
    assert printed == [str(here)] * 2
    assert here[0] != here[1]


@simulated
async def test_a_clock_converts_its_readings_to_virtual_time_at_any_rate() -> None:
    loop = asyncio.get_running_loop()
    clock = SimulatedCluster().clock("host")
    shown = []
    for rate in (1.0, 1.1, 0.9, 1.0):
        clock.set_rate(rate)
        for _ in range(3):
            await asyncio.sleep(0.7)
            shown.append((loop.time(), clock.monotonic()))
    for at_s, reading_s in shown:
        assert clock.virtual_s(reading_s) == pytest.approx(at_s, abs=1e-6)


@simulated
async def test_a_sleep_on_a_nodes_clock_is_cancelled_at_once_and_once() -> None:
    cluster, seen = SimulatedCluster(), []
    world = cluster.client_world("client")

    async def sleeper() -> None:
        try:
            await world.clock.sleep(100.0)
        except asyncio.CancelledError:
            seen.append(cluster.loop.time())
        await world.clock.sleep(1.0)
        seen.append("rested")

    task = world.spawn(sleeper(), "sleeper")
    await asyncio.sleep(1.0)
    task.cancel()
    task.cancel()  # before it could wake: the same cancellation, as asyncio has it
    await asyncio.sleep(10.0)
    assert (seen, task.done()) == ([1.0, "rested"], True)


@simulated
async def test_a_timeout_ends_a_sleep_on_a_nodes_clock() -> None:
    cluster = SimulatedCluster()
    clock = cluster.client_world("client").clock
    began = cluster.loop.time()
    with pytest.raises(TimeoutError):
        async with clock.timeout(2.0):
            await clock.sleep(5.0)
    assert cluster.loop.time() - began == 2.0
