"""Faults on a real Ray cluster of this machine: processes are killed or paused, nodes are killed and returned.

    with RealFaults("ebla", cluster) as faults:
        faults.kill_actor("tablet-server/host-2")   # SIGKILL; Ray starts it again
        faults.pause_actor("tablet-server/host-3")  # SIGSTOP: alive for the kernel, silent for all other processes
        faults.resume_actor("tablet-server/host-3")
        faults.kill_node(4)                         # SIGKILL of its raylet; its workers then end by themselves
        faults.return_node(4)

A process is only signalled if it is the one that answered under the role's address, by its start time, so that a
recycled pid is never hit. Paused processes resume when the block ends. Every call blocks, with a bound.
"""

from __future__ import annotations

import contextlib
import signal
from types import TracebackType

import psutil

from ebla.actors import deadlines
from ebla.actors.ray_world import RayNetwork
from ebla.chaos.ray.stage import victims
from ebla.deployment import namespace_of
from ebla.placement.local.cluster import LocalCluster
from ebla.storage.errors import InvalidArgument

END_S = 10.0  # the kernel ends a killed process at once, unless it waits for a disk


class RealFaults:
    """`cluster` is needed for faults of nodes only."""

    def __init__(self, deployment: str = "ebla", cluster: LocalCluster | None = None) -> None:
        self._network = RayNetwork(namespace_of(deployment))
        self._cluster = cluster
        self._paused: dict[str, psutil.Process] = {}

    def __enter__(self) -> RealFaults:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for address in list(self._paused):
            self.resume_actor(address)

    # -- actors

    def kill_actor(self, address: str) -> int:
        """Send SIGKILL, wait until the process has ended, and return its pid."""
        process = self._paused.pop(address, None) or self._process(address)
        process.send_signal(signal.SIGKILL)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.wait(END_S)
        return process.pid

    def pause_actor(self, address: str) -> int:
        """Send SIGSTOP, and return the pid: no heartbeats, answers or leases, while connections stay open."""
        process = self._process(address)
        process.suspend()
        self._paused[address] = process
        return process.pid

    def resume_actor(self, address: str) -> None:
        """Send SIGCONT. A process that Ray has ended meanwhile stays ended."""
        process = self._paused.pop(address, None)
        if process is None:
            raise InvalidArgument(f"{address} was not paused; paused are {sorted(self._paused) or 'none'}")
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()

    # -- nodes

    def kill_node(self, number: int) -> None:
        """Kill a node, and wait until its processes have ended. Ray declares it dead a few seconds later."""
        self._local().kill_node(number)

    def return_node(self, number: int) -> None:
        """Start the node with its slot label and its old directories; Ray then starts its roles again."""
        self._local().start_node(number)

    def _process(self, address: str) -> psutil.Process:
        return victims.process_of(deadlines.run(victims.ask(self._network, address)))

    def _local(self) -> LocalCluster:
        if self._cluster is None:
            raise InvalidArgument("nodes are killed through their LocalCluster; give it as `cluster`")
        return self._cluster
