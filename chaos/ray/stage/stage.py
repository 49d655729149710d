"""The stage of a run: a local Ray cluster of several nodes with a deployment on it, in a directory of its own.

    with staged(4, directory, needs) as stage: ...

Blocking calls run in threads. Changes of the cluster itself are made one at a time (`gate`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import ray

from ebla.actors import messages as m
from ebla.actors.errors import Unavailable
from ebla.actors.ray_shell import FAILED, RUNNING, STARTING, STOPPING, Pong
from ebla.actors.ray_world import RayNetwork
from ebla.chaos.plans import MASTER
from ebla.chaos.ray.groups import ClientGroups
from ebla.chaos.ray.report.injection import Injection, Missed
from ebla.chaos.ray.stage import victims
from ebla.chaos.ray.stage.disk_shim import DiskShim
from ebla.chaos.ray.stage.ledgers import RayLedgers
from ebla.chaos.ray.stage.namespaces import VARIABLE, NamespacedCluster, Namespaces
from ebla.options import MASTER as MASTER_ADDRESS
from ebla.placement import launch
from ebla.placement.asking import find_actor
from ebla.placement.config import DeploymentConfig, configure
from ebla.placement.connection import connect_ray, disconnect_ray
from ebla.placement.deploy.slots import SLOT_LABEL
from ebla.placement.local import processes as local_processes
from ebla.storage.errors import EblaError, InvalidArgument

NAME = "chaos"
HEAD = 1
# Roles of logs, by the names that plans use: `store-3` is the store of `host-3`, `auditor-1` the first auditor. `worker` without a
# number is the one that repairs a ledger at that moment, `auditor` the elected one.
NAMES = {"store": "ledger-store", "worker": "replication-worker", "auditor": "auditor"}
ROLES = ("worker", "auditor")
# Small limits: flushes and trims that occur every few minutes in production occur every few seconds.
SERVER = {"memtable_bytes": 1 << 20, "shared_log_bytes": 2 << 20}
# Copies are slow, so that repairs last for seconds.
LOGS = {
    "logs": True,
    "replication_worker": {
        "batch_entries": 20,
        "bytes_per_s": 10_000,
        "grace_s": 5.0,
        "backoff_s": 0.5,
        "backoff_max_s": 5.0,
        "look_s": 0.5,
        "garbage_s": 10.0,
    },
    "auditor": {"delay_s": 3.0, "settle_s": 3.0, "check_s": 20.0, "verify_percentage": 100.0, "look_s": 2.0},
}
PING_S = 2.0  # of one try
FIND_S = 15.0  # for the answer of a role that is to be hit
ASK_S = 2.0
BACK_S_MAX = 240.0  # Ray restarts an actor after 1 to 2 s, and 4 s later if its node was lost
UP_S = 120.0
POLL_S = 0.05

ANY_STATE = (STARTING, RUNNING, FAILED, STOPPING)

Show = Callable[[str], None]


def address_of(host: str) -> str:
    role, _, number = host.partition("-")
    if role == "auditor":
        return f"auditor/{int(number) - 1}"
    if role in NAMES:
        return f"{NAMES[role]}/host-{number}"
    return MASTER_ADDRESS if host == MASTER else f"tablet-server/{host}"


def host_of(address: str) -> str:
    """The name of the role of logs at this address, as plans use it."""
    role, _, slot = address.partition("/")
    return f"auditor-{int(slot) + 1}" if role == "auditor" else slot.replace("host", "worker")


def host_names(hosts: int) -> tuple[str, ...]:
    return tuple(f"host-{number}" for number in range(1, hosts + 1))


def victim_names(hosts: int, logs: bool) -> tuple[str, ...]:
    """The targets of faults beside the master. A deployment with logs has further roles on its hosts."""
    roles = [f"{role}-{number}" for role in ("store", "worker") for number in range(1, hosts + 1)]
    return (*host_names(hosts), *((*roles, "auditor-1", "auditor-2", *ROLES) if logs else ()))


@dataclass(frozen=True)
class Needs:
    """The preparations that a plan needs before the cluster's processes start."""

    namespaces: Namespaces | None = None
    shim: DiskShim | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def variables(self) -> dict[str, str]:
        found = dict(self.environment)
        if self.namespaces is not None:
            found[VARIABLE] = self.namespaces.text
        if self.shim is not None:
            found.update(self.shim.environment)
        return found


@contextlib.contextmanager
def staged(
    hosts: int, directory: Path, needs: Needs, show: Show = lambda text: None, *, logs: bool = False
) -> Iterator[RayStage]:
    """Start a deployment and connect this process to it. All its processes have ended when the block ends."""
    with contextlib.ExitStack() as ending:
        show(f"starting a Ray cluster of {hosts} nodes")
        ending.callback(end_leftovers, directory / "cluster")
        cluster = NamespacedCluster.start(
            hosts,
            directory=directory / "cluster",
            dashboard=False,
            environment=needs.variables(),
            progress=show,
        )
        assert isinstance(cluster, NamespacedCluster)
        ending.callback(cluster.kill_everything)
        connect_ray(cluster.address, directory=cluster.directory)
        ending.callback(disconnect_ray)
        single_master = {"masters": 1, "journals": 1}  # plans for Ray support no other
        data_dir = str(directory / "data")
        settings = {"name": NAME, "data_dir": data_dir, "tablet_server": SERVER, **single_master}
        config = configure({**settings, **(LOGS if logs else {})})
        report = launch.up(config, progress=show)
        if not report.ready:
            raise Unavailable(f"the deployment did not come up: {'; '.join(report.warnings)}")
        yield RayStage(cluster, config, needs)


def end_leftovers(directory: Path) -> None:
    """End a cluster whose start was interrupted before this process got its handle."""
    left = NamespacedCluster.find(directory)
    if left is not None:
        left.kill_everything()


class RayStage:
    """See the module. `destroyed`: hosts that lost their disks; `gone`: hosts that are lost for good. `clients`: after their start.
    `ledgers`: while clients run, if the deployment has logs."""

    def __init__(self, cluster: NamespacedCluster, config: DeploymentConfig, needs: Needs) -> None:
        self.cluster = cluster
        self.config = config
        self.needs = needs
        self.network = RayNetwork(config.namespace)
        self.epoch = time.monotonic()
        self.gate = asyncio.Lock()
        self.destroyed: dict[str, None] = {}
        self.gone: dict[str, None] = {}
        self.ledgers: RayLedgers | None = None
        self.clients: ClientGroups | None = None
        self._relaunching = asyncio.Lock()

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.cluster.slots

    def now_s(self) -> float:
        """The run's clock: CLOCK_MONOTONIC, which all processes of this machine share."""
        return time.monotonic() - self.epoch

    @property
    def victims(self) -> tuple[str, ...]:
        """The targets of faults, by the names that plans use."""
        return (*victim_names(len(self.hosts), self.config.logs), MASTER)

    async def found(self, host: str) -> str:
        """`worker` is the one that repairs a ledger now, or soon, and `auditor` the elected one. Raises Missed."""
        if host not in ROLES:
            return host
        assert self.ledgers is not None, "plans name these roles only if there are logs"
        address = await (self.ledgers.repairing() if host == "worker" else self.ledgers.auditor())
        if address is None:
            raise Missed("no ledger was repaired" if host == "worker" else "no auditor was elected")
        return host_of(address)

    # -- roles

    async def victim(self, host: str) -> psutil.Process:
        """The process of the host's role, which must be running. Raises Missed."""
        address = address_of(host)
        try:
            pong = await victims.ask(self.network, address, FIND_S)
        except EblaError as error:
            raise Missed(f"{address} gives no answer: {error}") from error
        if pong.state != RUNNING:
            raise Missed(f"{address} is {pong.state}")
        try:
            return victims.process_of(pong)
        except InvalidArgument as error:
            raise Missed(str(error)) from error

    async def silent(self, host: str, for_s: float) -> bool:
        """Whether the host's role gives no answer within that time."""
        try:
            await victims.ask(self.network, address_of(host), for_s)
        except EblaError:
            return True
        return False

    async def answer_of(
        self, host: str, other_than: int | None, within_s: float, states: Collection[str] = ANY_STATE
    ) -> Pong | None:
        """The answer of another process at the host's address, once it is in one of these states; None if there is none in time."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            try:
                pong = await victims.ask(self.network, address_of(host), PING_S)
            except EblaError:
                pass
            else:
                if pong.pid != other_than and pong.state in states:
                    return pong
            await asyncio.sleep(POLL_S)
        return None

    async def back(self, injection: Injection, other_than: int | None, host: str | None = None) -> None:
        """Wait until the host's role serves again, in another process. Act two fails if it never does."""
        if await self.answer_of(host or injection.host, other_than, BACK_S_MAX, (RUNNING,)) is not None:
            injection.undone()

    async def leads(self, host: str) -> tuple[str, ...]:
        """The tablets that the host's server reports to lead; none if it does not answer."""
        if host not in self.hosts:
            return ()
        try:
            state = await self.network.call(address_of(host), "status", m.Empty(), m.ServerState, ASK_S)
        except EblaError:
            return ()
        running = (replica for replica in state.replicas if replica.state == "running")
        return tuple(replica.tablet for replica in running if replica.leads)

    async def shut_down(self, host: str) -> None:
        handle = await asyncio.to_thread(find_actor, self.config.namespace, address_of(host))
        if handle is None:
            raise Missed(f"{address_of(host)} does not exist")
        handle.shutdown.remote()

    async def relaunch(self) -> None:
        """Launch missing roles and adopt existing ones, as `ebla up` does."""
        async with self._relaunching:
            await asyncio.to_thread(partial(launch.up, self.config, timeout_s=UP_S))

    # -- nodes

    def slot(self, host: str) -> str:
        """The slot of a host, or of a store or worker."""
        return address_of(host).rpartition("/")[2]

    def number(self, host: str) -> int:
        """The number of the host's node. The head is refused: the Ray cluster ends with it."""
        number = self.cluster.slot_number(self.slot(host))
        if number is None or number == HEAD:
            raise Missed(f"the node of {host} is the head of the Ray cluster, which ends with it")
        return number

    async def node_id(self, host: str) -> str:
        slot = self.slot(host)
        found = [node for node in await self._nodes() if node["Alive"] and _slot(node) == slot]
        if not found:
            raise Missed(f"{host} has no alive Ray node")
        return str(found[0]["NodeID"])

    async def until_dead(self, node_id: str, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while not await self.dead(node_id):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def dead(self, node_id: str) -> bool:
        return not any(node["Alive"] for node in await self._nodes() if node["NodeID"] == node_id)

    async def _nodes(self) -> list[dict[str, Any]]:
        return list(await asyncio.to_thread(ray.nodes))

    def raylet(self, number: int) -> psutil.Process:
        record = self.cluster.state.nodes[number].named("raylet")
        process = None if record is None else local_processes.find(record)
        if process is None:
            raise Missed(f"node {number} does not run")
        return process

    async def kill_node(self, number: int) -> None:
        await self._change(self.cluster.kill_node, number)

    async def start_node(self, number: int) -> None:
        await self._change(self.cluster.start_node, number)

    async def supersede_node(self, number: int) -> None:
        await self._change(self.cluster.supersede_node, number)

    async def _change(self, change: Callable[..., None], *arguments: float) -> None:
        async with self.gate:
            await asyncio.to_thread(change, *arguments)

    async def processes(self, number: int) -> list[psutil.Process]:
        return await asyncio.to_thread(self.cluster.processes, number)

    # -- directories

    def directory(self, host: str) -> Path:
        return Path(self.config.data_dir) / host / "tablet-server"

    def move_away(self, host: str, directory: Path) -> Path:
        """Rename the server's directory, or the one that it set aside: the next start there is a new server's."""
        turn = sum(1 for _ in directory.parent.glob("tablet-server.lost-*")) + 1
        self.destroyed[host] = None
        return directory.rename(directory.with_name(f"tablet-server.lost-{turn}"))


def _slot(node: Mapping[str, Any]) -> str:
    return str((node.get("Labels") or {}).get(SLOT_LABEL, ""))
