"""Measures how long the master needs to give the PacificA tablets of a dead server new primaries, after its decision.

    python -m benchmarks.reassignment 1000

In a process of its own run the real master and three real journal nodes, over LMDB directories of this machine's disk. The tablet
servers are scripted: they send beacons and reports, and follow orders without rows. One server leads all tablets, and falls silent.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.figures import in_another_process
from benchmarks.takeover import MASTER, NODES, OPTIONS, PEERS, Preparer, first_edit, image, serves
from ebla.actors import messages as m
from ebla.actors.deadlines import timeout
from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.errors import NotDelivered, OutcomeUnknown
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.options import JournalNodeOptions
from ebla.actors.master.catalog.records import CatalogImage
from ebla.actors.master.leadership.group import Master
from ebla.actors.messages.appointments import AppointReply, AppointRequest, Beacon, BeaconReply
from ebla.actors.messages.pacifica import PacificaView
from ebla.actors.ray_shell import MachineClock, Tasks
from ebla.actors.replication.configuration import PACIFICA, Configuration, Peer
from ebla.actors.world import Dispatcher, Role, World, decode_answer, encode, rpc
from ebla.storage.errors import EblaError
from ebla.storage.lmdb.disk import LmdbDisk

SERVERS = 4
BEAT_S = 0.5
POLL_S = 0.001
WITHIN_S = 60.0


class Reassignment(msgspec.Struct, frozen=True):
    """Seconds from the master's decision: `durable_s` until the edit was on a majority of the journal nodes, `ordered_s` until all
    new primaries had followed their orders. `edits`: how many changed configurations."""

    tablets: int
    durable_s: float
    ordered_s: float
    edits: int


class Network:
    """Calls between roles of this process; messages travel as bytes."""

    def __init__(self) -> None:
        self.roles: dict[str, Dispatcher] = {}

    async def call(
        self, address: str, method: str, message: msgspec.Struct, reply: type[Any], timeout_s: float
    ) -> Any:
        role = self.roles.get(address)
        if role is None:
            raise NotDelivered(f"there is no {address}", address=address)
        try:
            async with timeout(timeout_s):
                await asyncio.sleep(0)
                return decode_answer(await role.answer(method, encode(message)), reply)
        except TimeoutError:
            raise OutcomeUnknown("no answer", address=address) from None


class Server(Role):
    """A tablet server without rows. It leads the tablets of its orders, and `led` from the beginning."""

    def __init__(self, world: World, peer: Peer, tablets: dict[str, Configuration]) -> None:
        self.world, self.tablets = world, tablets
        self.instance = m.ServerInstance(peer.uuid, 1, f"start of {peer.uuid}")
        self.silent = False
        self._register = True
        self.last_beacon_s = 0.0

    async def start(self) -> None:
        self.world.spawn(self._repeat(self._beat, BEAT_S), "heartbeats")
        self.world.spawn(self._repeat(self._send_beacon, OPTIONS.master.detector.beacon_s), "beacons")

    @rpc
    async def appoint(self, request: AppointRequest) -> AppointReply:
        self.tablets |= {each.tablet: each.configuration for each in request.appointments.appointed}
        return AppointReply()

    async def _repeat(self, send: Callable[[], Any], every_s: float) -> None:
        self._full, self._sequence = True, 0
        while not self.silent:
            try:
                await send()
            except EblaError:
                pass  # the master does not serve yet
            await self.world.clock.sleep(every_s)

    async def _send_beacon(self) -> None:
        self.last_beacon_s = time.monotonic()
        beacon = Beacon(self.instance, 1, DetectorLimits().lease_s)
        await self.world.network.call(MASTER, "beacon", beacon, BeaconReply, 1.0)

    async def _beat(self) -> None:
        self._sequence += 1
        address = self.world.address
        registration = m.Registration(address, address.partition("/")[2], "scripted")
        request = m.HeartbeatRequest(
            self.instance,
            registration if self._register else None,
            self.report(),
            replicas=len(self.tablets),
        )
        reply = await self.world.network.call(MASTER, "heartbeat", request, m.HeartbeatReply, 10.0)
        self._register, self._full = reply.needs_register, reply.needs_full_report

    def report(self) -> m.TabletReport:
        updated = tuple(self._report(*each) for each in self.tablets.items()) if self._full else ()
        return m.TabletReport(self._sequence, not self._full, updated)

    def _report(self, tablet: str, known: Configuration) -> m.ReplicaReport:
        role = "primary" if known.primary == self.instance.uuid else "secondary"
        view = PacificaView(role, known.index, known.primary, 1, 1)
        return m.ReplicaReport(tablet, "running", view, known)


class Machine:
    """Roles of this process with real clocks, each over its own LMDB directory."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.network = Network()
        self.failed: list[BaseException] = []
        self.tasks = Tasks(lambda name, error: self.failed.append(error))

    def world(self, address: str) -> World:
        return World(
            address=address,
            clock=MachineClock(),
            network=self.network,
            disk=LmdbDisk(self.base / address.replace("/", "-")),
            random=random.Random(address),
            spawn=self.tasks.spawn,
            fail=self.failed.append,
        )

    async def start(self, role: Role, address: str) -> None:
        await role.start()
        self.network.roles[address] = Dispatcher(role, lambda method, error: self.failed.append(error))

    async def until(self, holds: Callable[[], bool]) -> float:
        """Return the time at which it held."""
        deadline = time.monotonic() + WITHIN_S
        while not holds():
            assert not self.failed, self.failed
            assert time.monotonic() < deadline, f"not within {WITHIN_S:g} s"
            await asyncio.sleep(POLL_S)
        return time.monotonic()


async def _prepare(machine: Machine, made: CatalogImage) -> None:
    """Format the journal, and leave a checkpoint of the catalog in the master's directory."""
    for node in NODES:
        await machine.start(JournalNode(machine.world(node), JournalNodeOptions()), node)
    txid = await first_edit(machine.world("outside"))
    world = machine.world(MASTER)
    await Preparer(world, made, txid).start()
    await world.disk.close()


def _led_by_the_first(table: int, bucket: int) -> Configuration:
    others = (PEERS[1 + (bucket + turn) % (SERVERS - 1)] for turn in range(2))
    return Configuration((PEERS[0], *others), 1, primary=PEERS[0].uuid, min_members=2)


async def measured(tablets: int, base: Path) -> Reassignment:
    machine = Machine(base)
    made = image(tablets, _led_by_the_first, PACIFICA, 2)
    await _prepare(machine, made)
    master = Master(machine.world(MASTER), OPTIONS)
    await machine.start(master, MASTER)
    await machine.until(lambda: serves(master))
    assert master.active_term is not None
    servers = []
    for peer in PEERS[:SERVERS]:
        held = {
            each.tablet: each.configuration
            for each in made.tablets
            if each.configuration is not None and each.configuration.peer(peer.uuid) is not None
        }
        servers.append(Server(machine.world(peer.address), peer, held))
        await machine.start(servers[-1], peer.address)
    appointer = master.active_term.master.appointer
    reported = [server.instance for server in servers]
    await machine.until(
        lambda: not appointer.planner.unled and all(map(appointer.planner.is_leased, reported))
    )
    edits = appointer.edits
    dead = servers[0]
    dead.silent = True
    machine.network.roles.pop(PEERS[0].address)
    durable_at = await machine.until(lambda: appointer.edits > edits)
    decided_at = dead.last_beacon_s + OPTIONS.master.detector.grace_s
    ordered_at = await machine.until(lambda: not appointer.planner.unled)
    led = [tablet for server in servers[1:] for tablet, known in server.tablets.items() if known.index == 2]
    assert len(led) == tablets, "every tablet has one new primary"
    machine.tasks.cancel()
    return Reassignment(tablets, durable_at - decided_at, ordered_at - decided_at, appointer.edits - edits)


def reassignment(tablets: int = 1000) -> Reassignment:
    return in_another_process("reassignment", Reassignment, str(tablets))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ebla-bench-") as directory:
        found = asyncio.run(measured(int(sys.argv[1]), Path(directory)))
    print(msgspec.json.encode(found).decode())
