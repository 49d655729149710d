"""A whole deployment in virtual time: a master, or several and their journal nodes, a tablet server per host, and clients with the
real client library.

It does for simulated roles what Ray does for real ones: a role that has ended is started again after a while on its disk, unless a
fault holds it down.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from msgspec.structs import replace

from ebla import aio
from ebla.actors.errors import AlreadyPresent
from ebla.actors.journal.node.journal import Journal
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.node.rejoin import rejoin_journal
from ebla.actors.journal.options import JournalNodeOptions, JournalOptions, LeaseLimits
from ebla.actors.journal.writer.session import format_journal
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.leadership.group import Master
from ebla.actors.master.options import GroupOptions, MasterOptions
from ebla.actors.master.server import ActiveMaster
from ebla.actors.replication.configuration import PRE_VOTER
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.world import Faults, Role, World
from ebla.chaos.plans import MASTER
from ebla.chaos.simulation.ledger_roles import ROLES, maker_of
from ebla.chaos.simulation.masters import JOURNAL, start_alone
from ebla.chaos.simulation.medium import DurableState
from ebla.chaos.simulation.observers.promises import Promises, WatchedMaster, WatchedNode
from ebla.chaos.simulation.observers.sides import Answers, SidedServer
from ebla.chaos.simulation.observers.votes import Votes, WatchedServer
from ebla.chaos.simulation.world import NodeCrashed, SimulatedCluster, Tolerates, tolerates_nothing
from ebla.options import MASTER as MASTER_ADDRESS
from ebla.storage.errors import EblaError
from ebla.transport.client import DeploymentClient

RESTART_S = (0.02, 1.5)  # Ray's is about a second; others may be faster
POLL_S = 0.1
BOOT_S_MAX = 60.0
REJOIN_TRIES, REJOIN_PAUSE_S = 200, 0.5
NODE_OPTIONS = JournalNodeOptions(sync_s=2.0, rpc_timeout_s=3.0)


@dataclass(frozen=True)
class Shape:
    """How large a deployment is, and the options of its roles that differ from the defaults.

    `masters`: with more than one they share a journal on so many `journals` nodes; the process of a single one has the journal's
    only node, too. `grows`: an operator lets that journal grow to `journals` nodes in act one (growing.py).
    `stores`: of ledgers; with `auditors` each has a replication worker beside it.
    `restart_s`: after how long a role that has ended is started again. `forced`: tables whose tablets may lose their majorities for
    good, upon which operators force configurations. `uneven`: options of the tablet servers that have another value on each host, as
    while an operator changes them."""

    hosts: int = 3
    clients: int = 2
    masters: int = 1
    journals: int = 3
    grows: bool = False
    stores: int = 0
    auditors: int = 0
    restart_s: tuple[float, float] = RESTART_S
    forced: tuple[str, ...] = ()
    server: Mapping[str, Any] = field(default_factory=dict)
    master: Mapping[str, Any] = field(default_factory=dict)
    uneven: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def host_names(self) -> tuple[str, ...]:
        return tuple(f"host-{number}" for number in range(1, self.hosts + 1))

    def master_hosts(self) -> tuple[str, ...]:
        """As plans name them, if there are several, or one with journal nodes of their own."""
        several = self.masters > 1 or self.grows
        return tuple(f"master-{number}" for number in range(self.masters)) if several else ()

    def journal_hosts(self) -> tuple[str, ...]:
        """Of the nodes that have processes of their own."""
        first = 1 if self.grows else 0
        several = self.masters > 1 or self.grows
        return tuple(f"journal-{number}" for number in range(first, self.journals)) if several else ()

    def store_hosts(self) -> tuple[str, ...]:
        return tuple(f"store-{number}" for number in range(1, self.stores + 1))

    def repair_hosts(self) -> tuple[str, ...]:
        """Of replication workers and auditors."""
        workers = self.stores if self.auditors else 0
        return (
            *(f"worker-{number}" for number in range(1, workers + 1)),
            *(f"auditor-{number}" for number in range(1, self.auditors + 1)),
        )


@dataclass(frozen=True)
class ClientProcess:
    """A client's loop, and the function that starts a successor."""

    task: Any
    start_successor: Callable[[], None]


def address_of(host: str) -> str:
    if host == MASTER:
        return MASTER_ADDRESS
    role, _, number = host.partition("-")
    if role in ROLES:
        return f"{ROLES[role]}/{number}"
    return f"{role}/{number}" if role in ("master", "journal") else f"tablet-server/{host}"


def machine_of(address: str) -> str:
    """The host of the process at this address. A single master is on the first one."""
    role, _, name = address.partition("/")
    number = name.removeprefix("host-")
    if not number.isdigit():
        return address
    return f"host-{int(number) + 1}" if role in ("master", "journal") else f"host-{number}"


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
        self.cluster.hosts.host_of = machine_of
        self.hosts = shape.host_names()
        self.all_hosts = (
            *self.hosts,
            *(shape.master_hosts() or (MASTER,)),
            *shape.journal_hosts(),
            *shape.store_hosts(),
            *shape.repair_hosts(),
        )
        self.masters = tuple(map(address_of, shape.master_hosts())) or (MASTER_ADDRESS,)
        own = tuple(map(address_of, shape.journal_hosts()))
        self.journals = own if shape.masters > 1 else (MASTER_ADDRESS, *own)
        self.servers = tuple(map(address_of, self.hosts))
        self.stores = tuple(map(address_of, shape.store_hosts()))
        nodes = self.journals if shape.masters > 1 else ()
        self.kept_up = (
            *self.masters,
            *self.servers,
            *nodes,
            *self.stores,
            *map(address_of, shape.repair_hosts()),
        )  # addresses whose roles are started again
        self.random: Random = self.cluster.loop.derive("deployment")
        self.votes = Votes()
        self.promises = Promises()
        self.answers = Answers(shape.forced)
        self.newest_catalog: Catalog | None = None  # while the master's directory is an older copy
        self.accepts: tuple[str, ...] = ()  # tokens of lost catalogs; see MasterOptions
        self.hurt_stores: dict[
            str, float
        ] = {}  # uuids of stores whose directory was lost or damaged, and when
        self.gone: dict[str, None] = {}  # addresses of hosts that are lost for good
        self.forgotten: dict[str, None] = {}  # those that were down when an operator asked to forget them
        self._held_down: Counter[str] = Counter()
        self._supervisor: asyncio.Task[None] | None = None
        self._sessions: list[DeploymentClient] = []
        self.clients: dict[str, ClientProcess] = {}  # by address, in the order of their starts

    async def boot(self) -> None:
        """Returns when every server is known to the master."""
        if self.shape.masters == 1:
            await start_alone(self.cluster, self._group_options(MASTER_ADDRESS), self.make_master)
        else:
            await self._boot_masters()
        for host in self.hosts:
            await self.cluster.start(address_of(host), self.maker(host))
        for host in (*self.shape.store_hosts(), *self.shape.repair_hosts()):
            await self.cluster.start(address_of(host), maker_of(host, self.masters))
        self._supervisor = asyncio.ensure_future(self._supervise())
        for _ in range(int(BOOT_S_MAX / POLL_S)):
            master = self.active_master(self.master_address())
            if master is not None and self._knows_all(master):
                return
            await asyncio.sleep(POLL_S)
        raise AssertionError(f"the deployment did not come up within {BOOT_S_MAX:g} s")

    async def _boot_masters(self) -> None:
        for node in self.journals:
            await self.cluster.start(node, self.make_node)
        await format_journal(self.cluster.client_world("operator"), self.journal_options())
        for master in self.masters:
            await self.cluster.start(master, self.make_master)

    def make_node(self, world: World) -> Role:
        options = replace(NODE_OPTIONS, masters=self.masters)
        return WatchedNode(world, options, self.promises, self._is_copy)

    def journal_options(self) -> JournalOptions:
        """Small, as the limits of the other roles are: segments end and edits are purged soon, and no call waits long for a node that
        is down."""
        begun = self.journals if self.shape.masters > 1 else (MASTER_ADDRESS,)
        return JournalOptions(
            journal=JOURNAL,
            nodes=begun,
            segment_txns=15,
            segment_s=5.0,
            quiet_s=2.0,
            write_timeout_s=3.0,
            read_timeout_s=3.0,
            format_timeout_s=3.0,
            recovery_timeout_s=5.0,
        )

    def _master_options(self) -> MasterOptions:
        return MasterOptions(**{"bg_s": 0.1, "settle_s": 0.5, **self.shape.master}, accepts=self.accepts)

    def make_master(self, world: World) -> Master:
        """Always with the nodes that the journal had at first, as Ray starts it again."""
        return WatchedMaster(world, self._group_options(world.address), self.promises, self._is_copy)

    def _group_options(self, address: str) -> GroupOptions:
        number = self.masters.index(address)
        lease = LeaseLimits(
            lease_s=1.6 + 0.1 * number, held_s=2.0 + 0.125 * number
        )  # as while options change
        return GroupOptions(
            masters=self.masters,
            journal=self.journal_options(),
            lease=lease,
            master=self._master_options(),
            node=NODE_OPTIONS,
            purge_s=2.0,
            grow_s=5.0,
            hand_over_s=3.0 if self.shape.grows else 10.0,
        )

    def maker(self, host: str) -> Callable[[World], Role]:
        number = self.hosts.index(host)
        own = {name: values[number % len(values)] for name, values in self.shape.uneven.items()}
        options = TabletServerOptions(masters=self.masters, host=host, **{**self.shape.server, **own})
        if not self.shape.forced:
            return lambda world: WatchedServer(world, options, self.votes, self._is_copy)
        now_s = self.cluster.loop.time
        return lambda world: SidedServer(world, options, self.votes, self._is_copy, self.answers, now_s)

    def _is_copy(self, uuid: str) -> bool:
        """Whether an old copy of the role's directory is in use somewhere."""
        states = [self.cluster.state(address) for address in (*self.servers, *self.journals, *self.masters)]
        return any(state.is_copy and state.uuid == uuid for state in states)

    # -- masters

    def active_master(self, address: str) -> ActiveMaster | None:
        """The master that serves at this address, or served until its lease expired."""
        role = self.cluster.role(address) if self.cluster.alive(address) else None
        return role.active_term.master if isinstance(role, Master) and role.active_term is not None else None

    def serving(self) -> list[str]:
        """The masters that would answer at this instant; a paused one would not."""
        cluster = self.cluster
        roles = {a: cluster.role(a) for a in self.masters if cluster.alive(a) and not cluster.paused(a)}
        return [
            address
            for address, role in roles.items()
            if role.active_term is not None and role.active_term.serves()
        ]

    def master_address(self) -> str:
        """The address of a serving master, or else of the first one."""
        if len(self.masters) == 1:
            return self.masters[0]
        return next(iter(self.serving()), self.masters[0])

    def _knows_all(self, master: ActiveMaster) -> bool:
        uuids = [self.cluster.role(address).instance.uuid for address in self.servers]
        now = master.world.clock.monotonic()
        return all(master.servers.is_alive(uuid, now) for uuid in uuids)

    async def rejoin(self, node: str) -> None:
        """Let a journal node rejoin after the loss of its disk, as an operator does."""
        world = self.cluster.client_world(f"client/operator-of-{node}")
        options = self.journal_options()
        if self.shape.grows:
            options = replace(options, journal=replace(JOURNAL, version=2), nodes=self.journals)
        for _ in range(REJOIN_TRIES):
            try:
                await rejoin_journal(world, options, node)
            except AlreadyPresent:
                return  # the answer to an earlier try was lost
            except EblaError:
                await asyncio.sleep(REJOIN_PAUSE_S)
            else:
                return
        raise AssertionError(f"{node} lost its directory, and could not rejoin its journal")

    def rejoining(self) -> list[str]:
        """Journal nodes that lost their directories, and do not count again yet."""
        return [node for node in self.journals if self._counting(node) is None]

    def node(self, address: str) -> JournalNode | None:
        """The journal node at this address, if it is alive."""
        role = self.cluster.role(address) if self.cluster.alive(address) else None
        if isinstance(role, Master):
            return role.node
        return role if isinstance(role, JournalNode) else None

    def _counting(self, address: str) -> Journal | None:
        """The journal of the node at this address, if the node counts."""
        node = self.node(address)
        journal = None if node is None else node.journals.get(JOURNAL.name)
        return None if journal is None or journal.view.state.token else journal

    def has_grown(self) -> bool:
        """Whether the journal has several nodes, and each counts: the loss of one directory loses nothing."""
        journals = map(self._counting, self.journals)
        return all(journal is not None and journal.form.journal.version == 2 for journal in journals)

    def on_the_way(self, tablet: str) -> bool:
        """Whether a member of the tablet is not a voter yet."""
        master = self.active_master(self.master_address())
        record = None if master is None else master.catalog.tablets.get(tablet)
        members = () if record is None or record.configuration is None else record.configuration.peers
        return any(peer.kind == PRE_VOTER for peer in members)

    def apart(self) -> list[str]:
        """Masters whose catalog differs from that of the serving one."""
        serving = self.active_master(self.master_address())
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
        session = DeploymentClient(world, masters=self.masters)
        self._sessions.append(session)
        return aio.Database(session), world

    # -- roles that end and return

    def hold_down(self, host: str) -> None:
        """Crash the host's role, and keep it down until `release` was called as often."""
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

    def release(self, host: str) -> None:
        self._held_down[address_of(host)] -= 1

    @contextlib.contextmanager
    def down(self, *hosts: str) -> Iterator[None]:
        """Crash the hosts' roles, and keep them down while the block lasts."""
        for host in hosts:
            self.hold_down(host)
        yield
        for host in hosts:
            self.release(host)

    def tolerates_loss_of(self, host: str) -> bool:
        """Whether other hosts have the data of its disk. The directory of a single master is the only copy, and a journal node that
        lost its directory does not count before the journal has grown."""
        if self.shape.grows and (address_of(host) == MASTER_ADDRESS or host in self.shape.journal_hosts()):
            return self.has_grown()
        return host != MASTER

    def note_hurt(self, address: str) -> None:
        """The directory at this address is going to be lost or damaged."""
        uuid = self.cluster.state(address).uuid
        if address in self.stores and uuid is not None:
            self.hurt_stores.setdefault(uuid, self.cluster.loop.time())

    def lose(self, host: str) -> None:
        address = address_of(host)
        self.gone[address] = None
        if self.cluster.alive(address):
            self.cluster.crash(address)
        self.note_hurt(address)
        self.cluster.put_disk(address, DurableState())

    def is_down(self, address: str) -> bool:
        """Whether the machine is down, as an operator sees it there."""
        return not self.cluster.alive(address)

    def release_all(self) -> None:
        self._held_down.clear()

    async def _supervise(self) -> None:
        due: dict[str, float] = {}
        poll_s = min(POLL_S, self.shape.restart_s[1])
        while True:
            await asyncio.sleep(poll_s)
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
