"""A real Ray cluster of several nodes on this machine, for `ebla up --local 4` and the cluster tests.

    cluster = LocalCluster.start(4, directory=Path("~/.ebla/local").expanduser())
    cluster = LocalCluster.attach(directory)    # from another process, later
    cluster.kill_node(3)                        # SIGKILL of the raylet; its workers die by themselves
    cluster.start_node(3)                       # back, with the same slot label
    cluster.stop()

Node number i carries the label `ebla.slot=host-i`; node 1 is the head. Every process is recorded in
`<directory>/local.json` before anything else happens to it, so that after any interruption of a
command the next `stop` ends exactly these processes and their descendants. This module never
touches the data of roles.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from ebla.placement.interrupts import uninterrupted
from ebla.placement.local import node as local_node
from ebla.placement.local import processes as local_processes
from ebla.placement.local.node import NodeSettings
from ebla.placement.local.processes import ProcessRecord, mark_of
from ebla.storage.directories.instance import write_durably
from ebla.storage.errors import EblaError, InvalidArgument

STOPPING = "ebla: the local Ray cluster is ending; that is completed, so that no process is left"
STATE, LOCK = "local.json", "local.lock"
NODES_MAX = 64
START_S = 300.0  # an idle 2-core machine needs about 12 s for four nodes, a very busy one two minutes
POLL_S = 0.05
TERM_S = 4.0
KILL_S = 10.0
WORKERS_END_S = 8.0  # a worker notices the end of its raylet within about 1 s
HEAD = 1
WORDS_MAX = 200
AGAIN_MAX = 2  # further starts of a node that was too slow for Ray

Progress = Callable[[str], None]


class LocalClusterError(EblaError):
    """The local cluster is not in the state that the command needs. `log`: the file with details, if any."""

    fields = ("node", "log")
    node: int | None
    log: str | None


class NodeState(msgspec.Struct, frozen=True):
    """One node's present (or last) incarnation. `launcher` is the `ray start --block` process."""

    number: int
    incarnation: int
    temporary: str
    log: str
    launcher: ProcessRecord
    processes: tuple[ProcessRecord, ...] = ()

    def named(self, name: str) -> ProcessRecord | None:
        return next((process for process in self.processes if process.name == name), None)


class LocalState(msgspec.Struct, frozen=True):
    """local.json. `owner`: the process that ends the cluster at its own end; None if a command does."""

    cluster: str
    settings: NodeSettings
    temporary: str
    nodes: dict[int, NodeState] = {}
    size: int = 0
    address: str | None = None
    dashboard_url: str | None = None
    complete: bool = False
    owner: ProcessRecord | None = None


class LocalCluster:
    """A local cluster. Its methods block; one command at a time works on a directory."""

    def __init__(self, directory: Path, state: LocalState, progress: Progress | None = None) -> None:
        self.directory = directory
        self.state = state
        self._progress = progress or (lambda message: None)
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    # -- beginning and end

    @classmethod
    def start(
        cls,
        nodes: int = 4,
        *,
        directory: Path,
        dashboard: bool = True,
        num_cpus: int = 4,
        object_store_bytes: int | None = None,
        auth: str | None = None,
        environment: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        temporary_root: Path = Path("/tmp"),
        timeout_s: float = START_S,
        owned: bool = False,
    ) -> LocalCluster:
        """Start all nodes and wait until each is part of the cluster. An interruption leaves no
        process behind. `owned`: this process ends the cluster; if it is killed before, the next start
        does."""
        if not 1 <= nodes <= NODES_MAX:
            raise InvalidArgument(f"nodes must be between 1 and {NODES_MAX}, not {nodes}")
        directory = Path(directory).expanduser().absolute()
        (directory / "logs").mkdir(parents=True, exist_ok=True)
        with _locked(directory):
            _refuse_running(directory, progress)
            cluster_id = secrets.token_hex(4)
            settings = NodeSettings(
                num_cpus=num_cpus,
                object_store_bytes=object_store_bytes or local_node.object_store_bytes(nodes),
                dashboard=dashboard,
                auth=local_node.choose_auth(auth, directory, os.environ),
                extra=dict(environment or {}),
            )
            owner = local_processes.record(psutil.Process()) if owned else None
            temporary = str(temporary_root / f"ebla-{cluster_id}")
            state = LocalState(cluster_id, settings, temporary, size=nodes, owner=owner)
            cluster = cls(directory, state, progress)
            try:
                cluster._bring_up(nodes, timeout_s)
            except BaseException:
                with uninterrupted():
                    cluster._end(signal.SIGKILL)
                raise
        return cluster

    @classmethod
    def attach(cls, directory: Path, progress: Progress | None = None) -> LocalCluster:
        """The cluster that runs in this directory, started by any process."""
        directory = Path(directory).expanduser().absolute()
        found = cls.find(directory, progress)
        if found is None:
            raise LocalClusterError(
                f"no local cluster runs in {directory}; start one with `ebla up --local 4`"
            )
        if not found.running:
            raise LocalClusterError(
                f"the local cluster in {directory} runs only in part; end it with {_down(directory)} and start "
                "it again, the data stays"
            )
        return found

    @classmethod
    def find(cls, directory: Path, progress: Progress | None = None) -> LocalCluster | None:
        """The cluster that local.json describes, complete or not; None if there is none."""
        directory = Path(directory).expanduser().absolute()
        path = directory / STATE
        try:
            return cls(directory, msgspec.json.decode(path.read_bytes(), type=LocalState), progress)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise LocalClusterError(
                f"{path} is unreadable ({error}); end the processes it lists, then remove it"
            ) from error

    def stop(self) -> None:
        """End every process of the cluster, verify that none is left, and remove its temporary files. A signal does not stop
        that: the processes that are left would need another command."""
        with _locked(self.directory), uninterrupted(STOPPING):
            self._end(signal.SIGTERM)

    def kill_everything(self) -> None:
        """Simulate a power cut: SIGKILL every process. Ray's state of the cluster is lost, the data
        is not."""
        with _locked(self.directory), uninterrupted():
            self._end(signal.SIGKILL)

    # -- single nodes

    def kill_node(self, number: int) -> None:
        """SIGKILL the node's raylet. Its workers notice this and end by themselves; returns when
        they have ended."""
        node = self._node(number)
        if number == HEAD:
            raise InvalidArgument("node 1 is the head, its loss is the cluster's: use kill_everything()")
        with _locked(self.directory):
            raylet = local_processes.find(node.named("raylet") or node.launcher)
            if raylet is None:
                raise LocalClusterError(f"node {number} does not run", node=number)
            raylet.kill()
            marks, recorded = [self._mark(number)], self._recorded(number)
            local_processes.wait_gone(marks, recorded, WORKERS_END_S)
            self._require_gone(local_processes.kill(marks, recorded))
            self._reap(number)

    def start_node(self, number: int, timeout_s: float = START_S) -> None:
        """Bring a dead node back under its slot label; Ray gives it a new node id."""
        self._node(number)
        with _locked(self.directory):
            if self.alive(number):
                raise LocalClusterError(f"node {number} runs already", node=number)
            self._require_gone(local_processes.kill([self._mark(number)], self._recorded(number)))
            self._launch(number)
            try:
                self._await_started([number], timeout_s)
            except BaseException:
                with uninterrupted():
                    local_processes.kill([self._mark(number)], self._recorded(number))
                raise

    def alive(self, number: int) -> bool:
        raylet = self._node(number).named("raylet")
        return raylet is not None and local_processes.find(raylet) is not None

    # -- views

    @property
    def running(self) -> bool:
        """Whether the cluster was started completely, and its head runs."""
        return self.state.complete and self.alive(HEAD)

    @property
    def abandoned(self) -> bool:
        """Whether the process that should have ended the cluster was killed before."""
        return self.state.owner is not None and local_processes.find(self.state.owner) is None

    @property
    def address(self) -> str:
        assert self.state.address is not None, "a started cluster has an address"
        return self.state.address

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(local_node.slot_of(number) for number in sorted(self.state.nodes))

    def environment(self) -> dict[str, str]:
        """The variables that a shell must export so that Ray's own commands find this cluster."""
        found = {"RAY_ADDRESS": self.address, **self.state.settings.auth.environment()}
        if self.state.dashboard_url is not None:
            found["RAY_API_SERVER_ADDRESS"] = self.state.dashboard_url
        return found

    def processes(self, number: int) -> list[psutil.Process]:
        """The running processes of one node, found again at every call."""
        return local_processes.belonging([self._mark(number)], self._recorded(number))

    # -- starting

    def _bring_up(self, nodes: int, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        self._progress(f"starting the head of {nodes} nodes")
        self._launch(HEAD)
        self._await_started([HEAD], timeout_s)
        text = Path(self.state.nodes[HEAD].log).read_text()
        address, dashboard = local_node.ADDRESS.search(text), local_node.DASHBOARD.search(text)
        if address is None:
            raise LocalClusterError(
                "the head did not print its address", node=HEAD, log=self.state.nodes[HEAD].log
            )
        url = dashboard[1] if dashboard and self.state.settings.dashboard else None
        self._save(msgspec.structs.replace(self.state, address=address[1], dashboard_url=url))
        others = range(HEAD + 1, nodes + 1)
        for number in others:
            self._launch(number)
        self._await_started(others, deadline_s - time.monotonic())
        self._save(msgspec.structs.replace(self.state, complete=True))

    def _launch(self, number: int) -> None:
        previous = self.state.nodes.get(number)
        incarnation = previous.incarnation + 1 if previous else 1
        temporary = Path(self.state.temporary) / f"{number}.{incarnation}"
        temporary.mkdir(parents=True)
        if previous is None and not self.state.nodes:
            self._save(self.state)  # the mark must be known before the first process carries it
        log = self.directory / "logs" / f"node-{number}.log"
        settings, cluster = self.state.settings, self.state.cluster
        with open(log, "wb") as output:
            child = subprocess.Popen(
                self._command(number, temporary),
                env=local_node.environment(settings, cluster, number, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=temporary,
                start_new_session=True,
            )
        self._children[number] = child
        launcher = local_processes.record(psutil.Process(child.pid))
        self._set_node(NodeState(number, incarnation, str(temporary), str(log), launcher))

    def _command(self, number: int, temporary: Path) -> list[str]:
        own = self._address_of(number)
        return local_node.command(self.state.settings, number, temporary, self.state.address, own)

    def _address_of(self, number: int) -> str:
        return local_node.address_of(number)

    def _await_started(self, numbers: Sequence[int], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        waiting, started_over = list(numbers), dict.fromkeys(numbers, 0)
        while waiting:
            for number in list(waiting):
                node = self.state.nodes[number]
                text = Path(node.log).read_text(errors="replace")
                if local_node.STARTED.search(text):
                    waiting.remove(number)
                    processes = local_processes.record_all(self.processes(number))
                    self._set_node(msgspec.structs.replace(node, processes=processes))
                    self._progress(f"node {number} of {self.state.size} is up ({local_node.slot_of(number)})")
                elif local_processes.find(node.launcher) is None:
                    self._start_again(node, text, started_over)
            if waiting and time.monotonic() > deadline_s:
                node = self.state.nodes[waiting[0]]
                raise LocalClusterError(
                    f"node {node.number} was not up after {timeout_s:.0f} s; see {node.log}",
                    node=node.number,
                    log=node.log,
                )
            if waiting:
                time.sleep(POLL_S)

    def _start_again(self, node: NodeState, text: str, started_over: dict[int, int]) -> None:
        """Start a node again that ended while starting. Ray gives a node half a minute; on a busy
        machine, several nodes that start at once need more, and at the next try the others are up
        already."""
        number = node.number
        if not local_node.LATE.search(text) or started_over[number] == AGAIN_MAX:
            raise LocalClusterError(
                f"node {number} ended while starting ({_last_words(text)}); see {node.log}",
                node=number,
                log=node.log,
            )
        started_over[number] += 1
        self._require_gone(local_processes.kill([self._mark(number)], self._recorded(number)))
        self._reap(number)
        self._progress(f"node {number} of {self.state.size} did not come up in Ray's time, starting it again")
        self._launch(number)

    # -- ending

    def _end(self, number: int) -> None:
        """Signal all processes. With SIGTERM the launchers end their nodes in order; processes that
        are left after a while get SIGKILL."""
        marks = [self._mark(node) for node in range(1, max(self.state.size, *self.state.nodes, 1) + 1)]
        recorded = [entry for node in self.state.nodes for entry in self._recorded(node)]
        if number == signal.SIGTERM:
            launchers = [local_processes.find(node.launcher) for node in self.state.nodes.values()]
            local_processes.signal_all([process for process in launchers if process], signal.SIGTERM)
            local_processes.wait_gone(marks, recorded, TERM_S)
        survivors = local_processes.kill(marks, recorded, KILL_S)
        for node in list(self._children):
            self._reap(node)
        self._require_gone(survivors)
        shutil.rmtree(self.state.temporary, ignore_errors=True)
        (self.directory / STATE).unlink(missing_ok=True)

    def _require_gone(self, survivors: Sequence[ProcessRecord]) -> None:
        if survivors:
            names = ", ".join(f"{entry.name} ({entry.pid})" for entry in survivors)
            raise LocalClusterError(
                f"these processes do not end: {names}; see what they wait for, then try again"
            )

    def _reap(self, number: int) -> None:
        child = self._children.pop(number, None)
        if child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(KILL_S)

    # -- records

    def _node(self, number: int) -> NodeState:
        node = self.state.nodes.get(number)
        if node is None:
            raise InvalidArgument(f"there is no node {number}; the nodes are {sorted(self.state.nodes)}")
        return node

    def _mark(self, number: int) -> str:
        return mark_of(self.state.cluster, number)

    def _recorded(self, number: int) -> list[ProcessRecord]:
        node = self.state.nodes.get(number)
        return [] if node is None else [node.launcher, *node.processes]

    def _set_node(self, node: NodeState) -> None:
        self._save(msgspec.structs.replace(self.state, nodes={**self.state.nodes, node.number: node}))

    def _save(self, state: LocalState) -> None:
        self.state = state
        write_durably(self.directory / STATE, msgspec.json.format(msgspec.json.encode(state)))


def _refuse_running(directory: Path, progress: Progress | None) -> None:
    """Refuse a second start of a running cluster; end what an interrupted start or a killed owner left."""
    found = LocalCluster.find(directory, progress)
    if found is None:
        return
    if found.running and not found.abandoned:
        raise LocalClusterError(
            f"a local cluster runs in {directory} already; use it, or end it with {_down(directory)}"
        )
    if progress is not None:
        progress("ending what an interrupted local cluster left behind")
    found._end(signal.SIGKILL)


def _down(directory: Path) -> str:
    return f"`EBLA_LOCAL_DIR={shlex.quote(str(directory))} ebla down`"


def _last_words(text: str) -> str:
    """The last line of a failed process's output: usually Python's exception."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:WORDS_MAX].rstrip(".") if lines else "without any output"


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise LocalClusterError(
            f"another command is working on the local cluster in {directory}; wait for it"
        ) from None
    try:
        yield
    finally:
        os.close(handle)
