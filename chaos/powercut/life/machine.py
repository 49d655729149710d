"""One host with its roles, in this process: the real master and tablet server over real LmdbDisks, and a network between them that
reports requests and answers to a recording.

The maps begin small and the limits of the server are low, so that within seconds maps grow, memtables are flushed, the shared log
is trimmed and entries move to private logs.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec

from ebla.actors import messages as m
from ebla.actors.deadlines import timeout
from ebla.actors.errors import NotDelivered, OutcomeUnknown
from ebla.actors.journal.writer.session import format_journal
from ebla.actors.master.leadership.group import Master
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.server import ActiveMaster
from ebla.actors.ray_shell import MachineClock, Tasks
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import Dispatcher, Role, World, decode_answer, encode
from ebla.chaos.powercut.recording.events import Answered, Asked, Point, RoleEvent, Started
from ebla.chaos.powercut.recording.facts import PROMISES
from ebla.chaos.simulation.masters import alone
from ebla.storage.errors import EblaError
from ebla.storage.lmdb.disk import LmdbDisk
from ebla.storage.lmdb.environment import LmdbEnvironment
from ebla.storage.logs.entries import Position

Reply = TypeVar("Reply")
Say = Callable[[RoleEvent], None]

HOST = "host-a"
SERVER, MASTER = f"tablet-server/{HOST}", "master/0"
MAP_BYTES = 256 << 10
DATA_DIRS_MAX = 2
ANSWER_S = 60.0  # a machine under load is slow, but loses nothing
TRIES_MAX, RETRY_S = 2000, 0.002

SERVER_OPTIONS = TabletServerOptions(
    masters=(MASTER,),
    host=HOST,
    leader_heartbeat_s=0.02,
    election_s_min=0.08,
    lease_s=0.05,
    heartbeat_s=0.03,
    memtable_bytes=160 << 10,
    shared_log_bytes=64 << 10,
    log_retained_entries_max=60,
)
MASTER_OPTIONS = alone(
    MASTER,
    MasterOptions(
        bg_s=0.02,
        settle_s=0.01,
        unresponsive_s=60.0,
        checkpoint_edits=5,
        forget_min_s=0.3,
        rpc_backoff_s=0.01,
    ),
    purge_s=0.1,
    look_s=0.02,
)


class RoleEnded(EblaError):
    """A role failed: on Ray its process would end here, and be started again."""


def ignore(said: RoleEvent) -> None:
    """The listener if nothing is recorded."""


class SmallDisk(LmdbDisk):
    async def open_environment(
        self, path: str, databases: Sequence[str], *, create: bool, map_bytes: int = MAP_BYTES
    ) -> LmdbEnvironment:
        return await super().open_environment(
            path, databases, create=create, map_bytes=min(map_bytes, MAP_BYTES)
        )


class Faults:
    """Nothing fails; passed fault points are reported."""

    def __init__(self, say: Say) -> None:
        self.say = say

    async def here(self, point: str) -> None:
        self.say(Point(point))

    def reached(self, mark: str) -> None:
        return None


class Network:
    """Calls between roles of this process; messages travel as bytes."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.roles: dict[str, Dispatcher] = {}
        self.positions: Callable[[m.WriteRequest, m.WriteReply], list[tuple[str, Position]]] | None = None
        self._calls = count(1)

    async def call(
        self, address: str, method: str, message: msgspec.Struct, reply: type[Reply], timeout_s: float
    ) -> Reply:
        role = self.roles.get(address)
        if role is None:
            raise NotDelivered(f"there is no {address}", address=address)
        request, number = encode(message), next(self._calls)
        if method in PROMISES:
            self.say(Asked(number, address, method, request))
        try:
            async with timeout(timeout_s):
                data = await role.answer(method, request)
        except TimeoutError:
            raise OutcomeUnknown("no answer", address=address) from None
        answer = decode_answer(data, reply)
        if method in PROMISES:
            positions = []
            if isinstance(message, m.WriteRequest) and isinstance(answer, m.WriteReply) and self.positions:
                positions = self.positions(message, answer)
            self.say(Answered(number, data, tuple(positions)))
        return answer


class Machine:
    """The roles' directories are under `base`: master/, server/, and disk-1/ and so on if the server has data directories."""

    def __init__(self, base: Path, *, data_dirs: int = 0, seed: int = 0, say: Say = ignore) -> None:
        assert data_dirs <= DATA_DIRS_MAX
        self.base = base
        self.data_dirs = [base / f"disk-{number}" for number in range(1, data_dirs + 1)]
        self.say = say
        self.random = random.Random(seed)
        self.network = Network(say)
        self.network.positions = self._positions
        self.timeout_s = ANSWER_S
        self.defects: list[BaseException] = []
        self._running: dict[str, tuple[Role, Tasks, LmdbDisk]] = {}

    # -- life

    async def start_server(self) -> TabletServer:
        disk = SmallDisk(self.base / "server", self.data_dirs)
        server = await self._start(SERVER, disk, lambda world: TabletServer(world, SERVER_OPTIONS))
        assert isinstance(server, TabletServer)
        await self.until(lambda: server.running, "the server has loaded its replicas")
        self.say(Started(SERVER, server.instance.uuid, server.instance.seqno))
        return server

    async def start_master(self) -> ActiveMaster:
        disk = SmallDisk(self.base / "master")
        role = await self._start(MASTER, disk, lambda world: Master(world, MASTER_OPTIONS))
        assert isinstance(role, Master) and role.node is not None
        if not role.node.journals and not role.node.failed:
            await format_journal(role.world, MASTER_OPTIONS.journal)
        await self.until(
            lambda: role.active_term is not None and role.active_term.serves(), "the master serves"
        )
        self.say(Started(MASTER, role.directory.instance.uuid, role.directory.instance.seqno))
        return self.master

    async def _start(self, address: str, disk: LmdbDisk, make: Callable[[World], Role]) -> Role:
        tasks = Tasks(lambda name, error: self.defects.append(error))
        world = World(
            address=address,
            clock=MachineClock(),
            network=self.network,
            disk=disk,
            random=random.Random(self.random.getrandbits(64)),
            spawn=tasks.spawn,
            fail=self.defects.append,
            faults=Faults(self.say),
        )
        role = make(world)
        self._running[address] = role, tasks, disk
        await role.start()
        self.network.roles[address] = Dispatcher(role, lambda method, error: self.defects.append(error))
        return role

    async def stop(self, address: str) -> None:
        _, tasks, disk = self._running.pop(address)
        self.network.roles.pop(address, None)
        tasks.cancel()
        await asyncio.sleep(0)
        await disk.close()

    async def stop_all(self) -> None:
        for address in list(self._running):
            await self.stop(address)

    # -- its roles

    @property
    def server(self) -> TabletServer:
        role = self._running[SERVER][0]
        assert isinstance(role, TabletServer)
        return role

    @property
    def master(self) -> ActiveMaster:
        """The master that serves."""
        role = self._running[MASTER][0]
        assert isinstance(role, Master) and role.active_term is not None
        return role.active_term.master

    async def ask(self, address: str, method: str, message: msgspec.Struct, reply: type[Reply]) -> Reply:
        self._require_whole()
        return await self.network.call(address, method, message, reply, self.timeout_s)

    async def ask_master(self, method: str, message: msgspec.Struct, reply: type[Reply]) -> Reply:
        """Ask again while the master does not know the server yet, or is not sure that it is the active one."""
        for _ in range(TRIES_MAX):
            try:
                return await self.ask(MASTER, method, message, reply)
            except EblaError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(RETRY_S)
        raise EblaError(f"the master did not answer {method} in {TRIES_MAX} tries")

    async def until(self, holds: Callable[[], bool], what: str, timeout_s: float = ANSWER_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            self._require_whole()
            if time.monotonic() > deadline:
                raise EblaError(f"not true within {timeout_s:g} s: {what}")
            await asyncio.sleep(0.001)

    def _require_whole(self) -> None:
        if self.defects:
            raise RoleEnded(f"a role ended: {self.defects[0]!r}") from self.defects[0]

    def leads(self, tablet: str) -> bool:
        """Whether the server's replica leads and may answer reads."""
        replica = self.server.replicas.get(tablet)
        if replica is None or not replica.leads:
            return False
        try:
            replica.core.read_index(time.monotonic())
        except EblaError:
            return False
        return True

    def _positions(self, request: m.WriteRequest, reply: m.WriteReply) -> list[tuple[str, Position]]:
        """The positions of the acknowledged batches in the log, unless they are dropped already."""
        found = []
        for write, result in zip(request.writes, reply.results, strict=True):
            replica = self.server.replicas.get(write.tablet)
            if result is not None and replica is not None and replica.log.first_index <= result.index:
                found.append((write.tablet, replica.log.position(result.index)))
        return found
