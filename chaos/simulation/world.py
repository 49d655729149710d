"""A cluster of roles in one process and in virtual time: their worlds, crashes and restarts.

    async def scenario() -> None:
        cluster = SimulatedCluster()
        await cluster.start("journal/host-a", JournalNode)
        client = cluster.client_world("client")
        await client.network.call("journal/host-a", "append", request, Appended, timeout_s=1.0)
        cluster.crash("journal/host-a")             # SIGKILL: no finally runs
        await cluster.restart("journal/host-a")     # a new role object on the same disk

    loop.run(scenario(), seed=7)

A role that fails (a background task raises, `world.fail`, a defect in a handler) ends the run with RoleFailed. If the
scenario called `expect_failure(address)`, or its `tolerates` accepts the error, then only the node crashes, and `failures`
has the reason.
"""

from __future__ import annotations

import asyncio
import random
import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any

from ebla.actors.deadlines import Timeout, timeout
from ebla.actors.world import Dispatcher, Faults, NoFaults, Role, World
from ebla.chaos.simulation.disk import MemoryDisk
from ebla.chaos.simulation.loop import Alarm, Domain, SimulatedLoop
from ebla.chaos.simulation.medium import DurableState
from ebla.chaos.simulation.network import (
    NodeNetwork,
    SimulatedHosts,
    SimulatedNeighbours,
    SimulatedNetwork,
)

MakeRole = Callable[[World], Role]
Tolerates = Callable[[str, BaseException, DurableState], bool]  # address, error, directory of the role

WALL_START_US = 1_700_000_000_000_000
JITTER_S = 0.0001  # a timer fires a little late, each time differently


def tolerates_nothing(address: str, error: BaseException, directory: DurableState) -> bool:
    return False


class RoleFailed(AssertionError):
    """A role failed, and the scenario did not expect it."""


class NodeCrashed(RuntimeError):
    """The node died before it had started."""


@dataclass(frozen=True)
class Failure:
    address: str
    at_s: float
    where: str
    error: BaseException


class NodeClock:
    """A node's own clock: virtual time at `rate`; the wall clock is off by `wall_offset_us`. Survives restarts."""

    def __init__(self, loop: SimulatedLoop, random: random.Random) -> None:
        self._loop = loop
        self._random = random
        self._start_s = random.uniform(0, 1_000_000)
        self._since_s = loop.time()
        self._reading_s = self._start_s
        self._rate = 1.0
        self._turns = [
            (self._reading_s, self._since_s, 1.0)
        ]  # reading and virtual time since when a rate holds
        self.wall_offset_us = 0

    def set_rate(self, rate: float) -> None:
        """From now on a second of virtual time is `rate` seconds on this clock. The clock does not jump."""
        self._reading_s, self._since_s = self.monotonic(), self._loop.time()
        self._rate = rate
        self._turns.append((self._reading_s, self._since_s, rate))

    def virtual_s(self, reading_s: float) -> float:
        """The virtual time at which `monotonic` returned `reading_s`."""
        began = (turn for turn in reversed(self._turns) if turn[0] <= reading_s)
        first_s, since_s, rate = next(began, self._turns[0])
        return since_s + (reading_s - first_s) / rate

    def monotonic(self) -> float:
        return self._reading_s + (self._loop.now - self._since_s) * self._rate

    def wall_us(self) -> int:
        return WALL_START_US + int((self.monotonic() - self._start_s) * 1e6) + self.wall_offset_us

    @types.coroutine
    def sleep(self, seconds: float) -> Generator[Alarm | None, None, None]:
        """asyncio's sleep, in one frame: no function is called more often."""
        if seconds <= 0:
            yield None
            return
        late_s = JITTER_S * self._random.random()
        yield Alarm(self._loop, self._loop.now + (seconds / self._rate + late_s))

    def timeout(self, seconds: float) -> Timeout:
        return timeout(seconds / self._rate)


@dataclass
class Node:
    address: str
    domain: Domain
    world: World
    disk: MemoryDisk
    ended: asyncio.Future[None]
    neighbours: SimulatedNeighbours
    role: Role | None = None
    starting: asyncio.Future[None] | None = None
    stopping: asyncio.Task[None] | None = None


class SimulatedCluster:
    """See the module. Created inside a running SimulatedLoop, whose seed it shares."""

    def __init__(
        self,
        faults: Callable[[str], Faults] | None = None,
        tolerates: Tolerates = tolerates_nothing,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop), "a simulated cluster runs in chaos.simulation.loop.run"
        self.loop = loop
        self.network = SimulatedNetwork(loop)
        self.hosts = SimulatedHosts(loop)
        self.failures: list[Failure] = []
        self._faults = faults or (lambda address: NoFaults())
        self.tolerates = tolerates
        self._nodes: dict[str, Node] = {}
        self._zombies: dict[str, Node] = {}
        self._states: dict[str, DurableState] = {}
        self._clocks: dict[str, NodeClock] = {}
        self._make: dict[str, MakeRole] = {}
        self._incarnations = 0
        self._expected: dict[str, None] = {}

    # -- life and death --------------------------------------------------------------------------------------

    def launch(self, address: str, make_role: MakeRole) -> Node:
        """Start a node without waiting until its role has started. A failing start is the role's failure."""
        return self._launch(address, make_role, self._fail)

    async def start(self, address: str, make_role: MakeRole) -> Role:
        """Start a node and wait until its role has started. A failing start raises here; the node is down then."""
        node = self._launch(address, make_role, self._fail_start)
        assert node.starting is not None and node.role is not None
        await node.starting
        return node.role

    async def restart(self, address: str) -> Role:
        if self.alive(address):
            self.crash(address)
        return await self.start(address, self._make[address])

    def crash(self, address: str) -> None:
        """SIGKILL: its tasks never run again."""
        node = self._nodes[address]
        if node.domain.alive:
            self.network.died(address)
            self._kill(node)

    def _kill(self, node: Node) -> None:
        address = node.address
        self.loop.trace("crash", address)
        node.domain.alive = False
        node.disk.crash()
        self._end(node)
        if node.starting is not None and not node.starting.done():
            node.starting.set_exception(NodeCrashed(f"{address} crashed before it had started"))
            node.starting.exception()  # marks the error as retrieved: the start need not be awaited

    def _end(self, node: Node) -> None:
        node.ended.set_result(None)
        node.neighbours.end()

    def call_after(self, address: str, steps: int, act: Callable[[], None]) -> bool:
        """Call `act` just before the node takes the step after this many. Returns whether the node is alive."""
        node = self._nodes.get(address)
        if node is None or not node.domain.alive:
            return False
        node.domain.call_after(steps, act)
        return True

    def pause(self, address: str) -> None:
        """SIGSTOP: its connections stay open, its clock continues."""
        self.loop.trace("pause", address)
        self._nodes[address].domain.pause()

    def resume(self, address: str) -> None:
        """SIGCONT, for the node at this address and for a superseded one."""
        self.loop.trace("resume", address)
        for node in (self._zombies.get(address), self._nodes.get(address)):
            if node is not None:
                node.domain.resume()

    def supersede(self, address: str) -> None:
        """Act as if Ray took the living node for dead: calls do not reach it any more, and a second incarnation gets its
        address, while the first one runs and can still call others. `end_zombie` ends it."""
        assert self.alive(address) and address not in self._zombies
        self.loop.trace("supersede", address)
        self.network.unregister(address)
        self._zombies[address] = self._nodes.pop(address)

    def end_zombie(self, address: str) -> None:
        node = self._zombies.pop(address)
        if node.domain.alive:
            self._kill(node)

    async def stop(self, address: str) -> None:
        """SIGTERM: the role stops in its own order, then its tasks are cancelled and the disk is closed. A second call waits for
        the first stop. Raises NodeCrashed if the role fails, or if a crash ends the node first."""
        node = self._nodes[address]
        self.loop.trace("stop", address)
        if node.stopping is None:
            node.stopping = node.domain.context.run(self.loop.create_task, self._stop(node))
        stopping = node.stopping
        await asyncio.wait((stopping, node.ended), return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            raise NodeCrashed(f"{address} crashed while it stopped")
        if (error := stopping.exception()) is not None:
            self._fail(node, "stop", error)
            raise NodeCrashed(f"{address} failed while it stopped") from error
        if node.domain.alive:
            self.network.unregister(address)
            node.domain.alive = False
            self._end(node)

    async def _stop(self, node: Node) -> None:
        if node.role is not None:
            await node.role.stop()
        left = node.domain.spawned()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await node.disk.close()

    def expect_failure(self, address: str) -> None:
        """From now on a failure of this node crashes it without ending the run."""
        self._expected[address] = None

    # -- queries ---------------------------------------------------------------------------------------------

    def alive(self, address: str) -> bool:
        return address in self._nodes and self._nodes[address].domain.alive

    def known(self, address: str) -> bool:
        return address in self._nodes

    def came_up(self, address: str) -> bool:
        """Whether the last start at this address succeeded; its node may have ended since."""
        starting = self._nodes[address].starting if address in self._nodes else None
        return starting is not None and starting.done() and starting.exception() is None

    def paused(self, address: str) -> bool:
        return self.alive(address) and self._nodes[address].domain.paused

    def maker(self, address: str) -> MakeRole:
        return self._make[address]

    def will_be(self, address: str, make_role: MakeRole) -> None:
        """Set the role that is started at this address from now on."""
        self._make[address] = make_role

    def role(self, address: str) -> Any:
        return self._nodes[address].role

    def state(self, address: str) -> DurableState:
        """The medium of an address, for faults; it exists before the first start."""
        state = self._states.get(address)
        if state is None:
            state = self._states[address] = DurableState()
        return state

    def lose_disk(self, address: str) -> None:
        """Replace the directory by an empty one (the node must be down)."""
        assert not self.alive(address)
        self._states[address] = DurableState()

    def put_disk(self, address: str, state: DurableState) -> None:
        """Replace the directory, for instance by an old copy (the node must be down)."""
        assert not self.alive(address)
        self._states[address] = state

    def clock(self, address: str) -> NodeClock:
        if address not in self._clocks:
            self._clocks[address] = NodeClock(self.loop, self.loop.derive("clock", address))
        return self._clocks[address]

    def client_world(self, name: str) -> World:
        """A world without a role, for calls from outside."""
        return self._make_node(name).world

    # -- making nodes ----------------------------------------------------------------------------------------

    def _launch(
        self, address: str, make_role: MakeRole, failed: Callable[[Node, str, BaseException], None]
    ) -> Node:
        assert not self.alive(address), f"{address} is alive; crash or stop it first"
        self._make[address] = make_role
        node = self._make_node(address)
        self.loop.trace("start", address)
        role = node.role = make_role(node.world)

        def on_defect(method: str, error: BaseException) -> None:
            self._fail(node, method, error)

        self.network.register(address, node.domain, Dispatcher(role, on_defect))
        started = node.starting = self.loop.create_future()

        def on_started(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                return
            error = task.exception()  # marks it as retrieved, also if the node died in this very step
            if not node.domain.alive:
                return
            if error is not None:
                failed(node, "start", error)
            elif not started.done():  # the wait for it may have been cancelled
                started.set_result(None)

        task = self._spawn(node, role.start(), "start")
        task.add_done_callback(on_started)
        return node

    def _make_node(self, address: str) -> Node:
        self._incarnations += 1
        domain = self.loop.domain(f"{address}@{self._incarnations}")
        chance = self.loop.derive("node", domain.name)
        disk = MemoryDisk(self.state(address), self.loop.derive("disk", domain.name))
        neighbours = SimulatedNeighbours(self.hosts, address)

        def spawn(coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
            return self._spawn(node, coroutine, name, lambda task: self._task_failed(node, name, task))

        world = World(
            address=address,
            clock=self.clock(address),
            network=NodeNetwork(self.network, address),
            disk=disk,
            random=chance,
            spawn=spawn,
            fail=lambda error: self._fail(node, "world.fail", error),
            faults=self._faults(address),
            neighbours=neighbours,
            validates=True,
        )
        node = self._nodes[address] = Node(
            address, domain, world, disk, self.loop.create_future(), neighbours
        )
        return node

    def _spawn(
        self,
        node: Node,
        coroutine: Coroutine[Any, Any, None],
        name: str,
        failed: Callable[[asyncio.Task[None]], None] | None = None,
    ) -> asyncio.Task[None]:
        task = node.domain.context.run(self.loop.create_task, coroutine, name=name)
        mortal: Any = task.get_coro()
        mortal.spawned, mortal.failed = True, failed
        return task

    # -- failures --------------------------------------------------------------------------------------------

    def _task_failed(self, node: Node, name: str, task: asyncio.Task[None]) -> None:
        error = task.exception()
        assert error is not None
        self._fail(node, name, error)

    def _fail(self, node: Node, where: str, error: BaseException) -> None:
        """End the node, as Ray ends the process."""
        if not node.domain.alive:
            return
        self.failures.append(Failure(node.address, self.loop.time(), where, error))
        self.loop.trace("fail", node.address, where, type(error).__name__)
        if self._nodes.get(node.address) is node:
            self.crash(node.address)
        else:
            self._kill(node)
        if node.address not in self._expected and not self.tolerates(node.address, error, node.disk.state):
            what = f"{node.address} failed in {where} at {self.loop.time():.6f} s: {error!r}"
            failed = RoleFailed("\n".join([what, *getattr(error, "__notes__", ())]))
            failed.__cause__ = error
            self.loop.abort(failed)

    def _fail_start(self, node: Node, where: str, error: BaseException) -> None:
        """Give the error to the awaited `start`."""
        assert node.starting is not None
        if not node.starting.done():
            node.starting.set_exception(error)
        self.loop.trace("fail", node.address, where, type(error).__name__)
        self.crash(node.address)
