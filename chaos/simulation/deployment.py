"""A whole deployment in virtual time: a master, or several and their journal nodes, a tablet server per host, and clients with the
real client library.

It does for simulated roles what Ray does for real ones: a role that has ended is started again after a while on its disk, unless a
fault holds it down.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ebla import aio
from ebla.actors.errors import AlreadyPresent
from ebla.actors.journal.messages import JournalId
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.node.rejoin import rejoin_journal
from ebla.actors.journal.options import JournalNodeOptions, JournalOptions, LeaseLimits
from ebla.actors.journal.writer.session import format_journal
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.leadership.group import GroupMaster
from ebla.actors.master.options import GroupOptions, MasterOptions
from ebla.actors.master.server import Master
from ebla.actors.replication.configuration import PRE_VOTER
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.world import Faults, Role, World
from ebla.chaos.plans import MASTER
from ebla.chaos.simulation.medium import DurableState
from ebla.chaos.simulation.observers.ballots import Ballots, WatchedServer
from ebla.chaos.simulation.observers.promises import Promises, WatchedNode
from ebla.chaos.simulation.observers.sides import Answers, SidedServer
from ebla.chaos.simulation.world import NodeCrashed, SimulatedCluster, Tolerates, tolerates_nothing
from ebla.options import MASTER as MASTER_ADDRESS
from ebla.options import ClientWorld
from ebla.storage.errors import EblaError
from ebla.transport.client import DeploymentClient

RESTART_S = (0.02, 1.5)  # Ray's is about a second; others may be faster
LOOK_S = 0.1
BOOT_S_MAX = 60.0
REJOIN_TRIES, REJOIN_PAUSE_S = 200, 0.5
JOURNAL = JournalId("catalog", "simulated")
MOVER = "catalog-mover"  # its address, and what faults name it: it is on the host of the first master


@dataclass(frozen=True)
class Shape:
    """How large a deployment is, and the options of its roles that differ from the defaults.

    `masters`: several share a journal on `journals` nodes; a single one keeps its own log. `raised`: the deployment begins with a
    single master, and an operator raises the number in act one (raising.py). `restart_s`: how long after its end a role is started
    again. `forced`: tables whose tablets may lose their majorities for good, so that operators force configurations. `uneven`:
    options with another value on each tablet server, as while an operator changes them."""

    hosts: int = 3
    clients: int = 2
    masters: int = 1
    journals: int = 3
    raised: bool = False
    restart_s: tuple[float, float] = RESTART_S
    forced: tuple[str, ...] = ()
    server: Mapping[str, Any] = field(default_factory=dict)
    master: Mapping[str, Any] = field(default_factory=dict)
    uneven: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def host_names(self) -> tuple[str, ...]:
        return tuple(f"host-{number}" for number in range(1, self.hosts + 1))

    def master_hosts(self) -> tuple[str, ...]:
        """The names of several masters in plans; empty for a single one."""
        return tuple(f"master-{number}" for number in range(self.masters)) if self.masters > 1 else ()

    def journal_hosts(self) -> tuple[str, ...]:
        return tuple(f"journal-{number}" for number in range(self.journals)) if self.masters > 1 else ()


@dataclass(frozen=True)
class ClientProcess:
    """A client's loop, and the function that starts a successor."""

    task: Any
    start_successor: Callable[[], None]


def address_of(host: str) -> str:
    if host == MASTER:
        return MASTER_ADDRESS
    if host == MOVER:
        return MOVER
    role, _, number = host.partition("-")
    return f"{role}/{number}" if role in ("master", "journal") else f"tablet-server/{host}"


def host_of(master: str) -> str:
    """The name in plans of one of several masters."""
    return master.replace("/", "-")


class Deployment:
    """See the module. Created inside a running SimulatedLoop."""

    def __init__(
        self,
        shape: Shape,
        faults: Callable[[str], Faults] | None = None,
        tolerates: Tolerates = tolerates_nothing,
    ) -> None:
        self.shape = shape
        self.cluster = SimulatedCluster(faults, tolerates)
        self.hosts = shape.host_names()
        movers = (MOVER,) if shape.raised else ()
        self.everybody = (*self.hosts, *shape.master_hosts(), *shape.journal_hosts(), *movers)
        self.masters = tuple(map(address_of, shape.master_hosts())) or (MASTER_ADDRESS,)
        self.journals = tuple(map(address_of, shape.journal_hosts()))
        self.servers = tuple(map(address_of, self.hosts))
        self.kept_up = (*self.masters, *self.servers, *self.journals)  # addresses that are started again
        self.moved = not shape.raised  # whether the catalog is where it stays
        self.random: Random = self.cluster.loop.derive("deployment")
        self.ballots = Ballots()
        self.promises = Promises()
        self.answers = Answers(shape.forced)
        self.newest_catalog: Catalog | None = None  # while the master's directory is an older copy
        self.gone: dict[str, None] = {}  # addresses of hosts that are lost for good
        self.forgotten: dict[str, None] = {}  # those that were down when an operator asked to forget them
        self._held_down: Counter[str] = Counter()
        self._supervisor: asyncio.Task[None] | None = None
        self._sessions: list[DeploymentClient] = []
        self.clients: dict[str, ClientProcess] = {}  # by address, in the order of their starts

    async def boot(self) -> None:
        """Start all roles, and wait until the master knows every server."""
        if self.shape.raised:
            self.kept_up = (MASTER_ADDRESS, *self.servers)
            await self.cluster.start(MASTER_ADDRESS, self.make_only_master)
        else:
            await self._boot_masters()
        for host in self.hosts:
            await self.cluster.start(address_of(host), self.maker(host))
        self._supervisor = asyncio.ensure_future(self._supervise())
        for _ in range(int(BOOT_S_MAX / LOOK_S)):
            reigning = self.reigning(self.master_address())
            if reigning is not None and self._knows_all(reigning):
                return
            await asyncio.sleep(LOOK_S)
        raise AssertionError(f"the deployment did not come up within {BOOT_S_MAX:g} s")

    async def _boot_masters(self) -> None:
        for node in self.journals:
            await self.cluster.start(node, self.make_node)
        if self.journals:
            await format_journal(self.cluster.client_world("operator"), self.journal_options())
        for master in self.masters:
            await self.cluster.start(master, self.make_master if self.journals else self.make_only_master)

    def make_node(self, world: World) -> Role:
        options = JournalNodeOptions(sync_s=2.0, rpc_timeout_s=3.0)
        return WatchedNode(world, options, self.promises, self._is_copy)

    def journal_options(self) -> JournalOptions:
        """Small limits, as for other roles: segments end soon, edits are dropped soon, waits for dead nodes are short."""
        return JournalOptions(
            journal=JOURNAL,
            nodes=self.journals,
            segment_txns=15,
            segment_s=5.0,
            quiet_s=2.0,
            write_timeout_s=3.0,
            read_timeout_s=3.0,
            format_timeout_s=3.0,
            recovery_timeout_s=5.0,
        )

    def _master_options(self) -> MasterOptions:
        return MasterOptions(**{"bg_s": 0.1, "settle_s": 0.5, **self.shape.master})

    def make_only_master(self, world: World) -> Role:
        return Master(world, self._master_options())

    def make_master(self, world: World) -> Role:
        """One of several."""
        number = self.masters.index(world.address)
        lease = LeaseLimits(
            lease_s=1.6 + 0.1 * number, held_s=2.0 + 0.125 * number
        )  # as while options change
        options = GroupOptions(
            masters=self.masters,
            journal=self.journal_options(),
            lease=lease,
            master=self._master_options(),
            purge_s=2.0,
        )
        return GroupMaster(world, options)

    def maker(self, host: str) -> Callable[[World], Role]:
        number = self.hosts.index(host)
        own = {name: values[number % len(values)] for name, values in self.shape.uneven.items()}
        options = TabletServerOptions(masters=self.masters, host=host, **{**self.shape.server, **own})
        if not self.shape.forced:
            return lambda world: WatchedServer(world, options, self.ballots, self._is_copy)
        now_s = self.cluster.loop.time
        return lambda world: SidedServer(world, options, self.ballots, self._is_copy, self.answers, now_s)

    def _is_copy(self, uuid: str) -> bool:
        """Whether an old copy of the role's directory is in use."""
        states = [self.cluster.state(address) for address in (*self.servers, *self.journals)]
        return any(state.is_copy and state.uuid == uuid for state in states)

    # -- masters

    def reigning(self, address: str) -> Master | None:
        """The master that serves at this address, or served until its lease expired."""
        role = self.cluster.role(address) if self.cluster.alive(address) else None
        if isinstance(role, GroupMaster):
            return None if role.reign is None else role.reign.master
        return role if isinstance(role, Master) else None

    def serving(self) -> list[str]:
        """The masters that would answer at this instant; a paused one would not."""
        cluster = self.cluster
        roles = {a: cluster.role(a) for a in self.masters if cluster.alive(a) and not cluster.paused(a)}
        return [
            address
            for address, role in roles.items()
            if not isinstance(role, GroupMaster) or (role.reign is not None and role.reign.serves())
        ]

    def master_address(self) -> str:
        """The address of a serving master, or else of the first one."""
        if len(self.masters) == 1:
            return self.masters[0]
        return next(iter(self.serving()), self.masters[0])

    def _knows_all(self, master: Master) -> bool:
        uuids = [self.cluster.role(address).instance.uuid for address in self.servers]
        now = master.world.clock.monotonic()
        return all(master.servers.is_alive(uuid, now) for uuid in uuids)

    async def rejoin(self, node: str) -> None:
        """Let a journal node rejoin after the loss of its disk, as an operator does."""
        world = self.cluster.client_world(f"client/operator-of-{node}")
        for _ in range(REJOIN_TRIES):
            try:
                await rejoin_journal(world, self.journal_options(), node)
            except AlreadyPresent:
                return  # the answer to an earlier try was lost
            except EblaError:
                await asyncio.sleep(REJOIN_PAUSE_S)
            else:
                return
        raise AssertionError(f"{node} lost its directory, and could not rejoin its journal")

    def rejoining(self) -> list[str]:
        """Journal nodes that lost their directories, and do not count again yet."""
        found = []
        for node in self.journals:
            role = self.cluster.role(node) if self.cluster.alive(node) else None
            journal = role.journals.get(JOURNAL.name) if isinstance(role, JournalNode) else None
            if journal is None or journal.view.state.token:
                found.append(node)
        return found

    def on_the_way(self, tablet: str) -> bool:
        """Whether a member of the tablet is not a voter yet."""
        master = self.reigning(self.master_address())
        record = None if master is None else master.catalog.tablets.get(tablet)
        members = () if record is None or record.configuration is None else record.configuration.peers
        return any(peer.kind == PRE_VOTER for peer in members)

    def apart(self) -> list[str]:
        """Masters whose catalog differs from that of the serving one."""
        serving = self.reigning(self.master_address())
        if serving is None or len(self.masters) == 1:
            return []
        wanted, found = serving.catalog.image(), []
        for address in self.masters:
            role = self.cluster.role(address) if self.cluster.alive(address) else None
            standby = getattr(role, "standby", None)  # none before it has started
            if standby is None or standby.catalog.image() != wanted:
                found.append(address)
        return found

    # -- clients

    def connect(self, name: str) -> tuple[aio.Database, World]:
        """A client on a host of its own (`client/<name>`), which may crash like any node."""
        world = self.cluster.client_world(f"client/{name}")
        client_world = ClientWorld(world.clock, world.network, world.random, world.spawn)
        session = DeploymentClient(client_world, masters=self.masters)
        self._sessions.append(session)
        return aio.Database(session), world

    # -- roles that end and return

    def hold_down(self, host: str) -> None:
        """Crash the host's role, and keep it down until `let_up` was called as often."""
        address = address_of(host)
        self._held_down[address] += 1
        if self.cluster.alive(address):
            self.cluster.crash(address)

    async def stop_and_hold_down(self, host: str) -> None:
        """`hold_down` by SIGTERM."""
        address = address_of(host)
        self._held_down[address] += 1
        if self.cluster.alive(address) and not self.cluster.paused(address):
            with contextlib.suppress(NodeCrashed):  # another fault ended it first
                await self.cluster.stop(address)

    def let_up(self, host: str) -> None:
        self._held_down[address_of(host)] -= 1

    def bears_loss_of(self, host: str) -> bool:
        """Whether the data on the host's disk exists elsewhere: the directory of a single master has the only catalog."""
        return self.moved or host not in (MOVER, *self.shape.master_hosts())

    def lose(self, host: str) -> None:
        address = address_of(host)
        self.gone[address] = None
        if self.cluster.alive(address):
            self.cluster.crash(address)
        self.cluster.put_disk(address, DurableState())

    def is_held_down(self, address: str) -> bool:
        return self._held_down[address] > 0

    def is_down(self, address: str) -> bool:
        """Whether the machine is down, as an operator sees it there."""
        return not self.cluster.alive(address)

    def let_up_all(self) -> None:
        self._held_down.clear()

    async def _supervise(self) -> None:
        due: dict[str, float] = {}
        look_s = min(LOOK_S, self.shape.restart_s[1])
        while True:
            await asyncio.sleep(look_s)
            now = self.cluster.loop.time()
            for address in self.kept_up:
                if self.cluster.alive(address) or self._held_down[address] > 0 or address in self.gone:
                    due.pop(address, None)
                elif due.setdefault(address, now + self.random.uniform(*self.shape.restart_s)) <= now:
                    del due[address]
                    self._set_aside(address)
                    self.cluster.launch(address, self.cluster.maker(address))

    def _set_aside(self, address: str) -> None:
        """Replace a directory that was given up because its server was forgotten: the next start is a new server's."""
        if address in self.forgotten and self.cluster.state(address).given_up is not None:
            self.cluster.put_disk(address, DurableState())

    # -- the end

    def close(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
        for session in self._sessions:
            session.close()
