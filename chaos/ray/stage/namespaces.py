"""A network for every Ray node of a local cluster, so that nodes of one machine can be cut off from each other.

The head, with Ray's GCS and the clients, stays in the machine's network; every other node runs in a network namespace of its own,
on one bridge:

    host-1   10.231.X.1   the bridge itself
    host-2   10.231.X.2   namespace ebla-chaos-<pid>-2, and so on

A cut is a blackhole route in the namespace of a node, an isolation takes its link down. This needs root, `ip` and a kernel with
veth and bridges: `why_not` says what is missing. All names contain the pid of the process that made them, so that the next run
removes the remains of a killed one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from ebla.placement.interrupts import uninterrupted
from ebla.placement.local import node as local_node
from ebla.placement.local.cluster import START_S, LocalCluster
from ebla.storage.errors import EblaError

VARIABLE = "EBLA_CHAOS_NETWORK"  # names the network of a cluster's nodes: `<pid>:<X>`
HEAD = 1
COMMAND_S = 10.0
OCTETS = range(20, 250)
NAMESPACE = re.compile(r"^(ebla-chaos-(\d+)-\d+)", re.MULTILINE)
LINK = re.compile(r"^\d+: (eb(\d+)(?:v\d+)?)[:@]", re.MULTILINE)


class NetworkFailed(EblaError):
    """A command of `ip` failed; the message has its output."""


def why_not() -> str | None:
    """The reason why this machine cannot cut nodes off from each other; None if it can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "no permission: cutting networks needs root"
    if shutil.which("ip") is None:
        return "no such tool: ip (iproute2)"
    trial = Namespaces(os.getpid(), OCTETS[-1])
    try:
        try:
            trial.make([HEAD + 1])
        finally:
            trial.remove()
    except NetworkFailed as error:
        return f"this kernel does not allow network namespaces, veth or bridges: {error}"
    return None


@dataclass(frozen=True)
class Namespaces:
    """Made by `create`, ended by `remove`. Nodes are named by their numbers."""

    pid: int
    octet: int

    @classmethod
    def create(cls, nodes: int) -> Namespaces:
        sweep()
        taken = _ip("-o", "-4", "addr")
        octet = next(each for each in OCTETS if f" 10.231.{each}." not in taken)
        made = cls(os.getpid(), octet)
        try:
            made.make(range(HEAD + 1, nodes + 1))
        except BaseException:
            made.remove()
            raise
        return made

    @classmethod
    def parse(cls, text: str) -> Namespaces:
        pid, _, octet = text.partition(":")
        return cls(int(pid), int(octet))

    @property
    def text(self) -> str:
        return f"{self.pid}:{self.octet}"

    @property
    def bridge(self) -> str:
        return f"eb{self.pid}"

    def address(self, number: int) -> str:
        return f"10.231.{self.octet}.{number}"

    def name(self, number: int) -> str:
        return f"ebla-chaos-{self.pid}-{number}"

    def cable(self, number: int) -> str:
        """The bridge's end of the node's veth pair."""
        return f"{self.bridge}v{number}"

    # -- making and removing

    def make(self, numbers: Sequence[int]) -> None:
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address(HEAD)}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for number in numbers:
            name, cable = self.name(number), self.cable(number)
            _ip("netns", "add", name)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", cable, "master", self.bridge, "up")
            _ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", "eth0", "up")

    def remove(self) -> None:
        """Remove all namespaces and links. A process that still runs in a namespace keeps it, without a name, until the process ends."""
        with uninterrupted():
            for name, pid in NAMESPACE.findall(_ip("netns", "list")):
                if int(pid) == self.pid:
                    _ip("netns", "del", name)
            for link, pid in LINK.findall(_ip("-o", "link")):
                if int(pid) == self.pid:
                    # The kernel removes a link some time after its namespace.
                    _ip("link", "del", link, fail=False)

    # -- cutting and mending

    def isolate(self, number: int) -> None:
        _ip("link", "set", self.cable(number), "down")

    def rejoin(self, number: int) -> None:
        _ip("link", "set", self.cable(number), "up")

    def isolated(self, number: int) -> bool:
        return Path(f"/sys/class/net/{self.cable(number)}/operstate").read_text().strip() == "down"

    def silence(self, speaker: int, listener: int) -> None:
        """Stop packets from the first to the second. Answers of the first are lost, too, so connections that the second opens also
        fail."""
        _ip("-n", self.name(speaker), "route", "replace", "blackhole", f"{self.address(listener)}/32")

    def unsilence(self, speaker: int, listener: int) -> None:
        _ip("-n", self.name(speaker), "route", "del", "blackhole", f"{self.address(listener)}/32", fail=False)

    def silenced(self, speaker: int, listener: int) -> bool:
        routes = _ip("-n", self.name(speaker), "route", "show", "type", "blackhole").split()
        return self.address(listener) in routes


class NamespacedCluster(LocalCluster):
    """A local cluster whose nodes run in the namespaces that its environment names."""

    def _command(self, number: int, temporary: Path) -> list[str]:
        command = super()._command(number, temporary)
        network = self.state.settings.extra.get(VARIABLE)
        if network is None or number == HEAD:
            return command
        return ["ip", "netns", "exec", Namespaces.parse(network).name(number), *command]

    def _address_of(self, number: int) -> str:
        network = self.state.settings.extra.get(VARIABLE)
        return super()._address_of(number) if network is None else Namespaces.parse(network).address(number)

    def supersede_node(self, number: int, timeout_s: float = START_S) -> None:
        """Start a second Ray node with the label of a paused one that Ray takes for dead."""
        assert self.alive(number), f"node {number} has ended; call start_node()"
        before = [process.pid for process in self.processes(number)]
        self._children.pop(number, None)
        self._launch(number)
        self._await_started([number], timeout_s)
        node = self.state.nodes[number]
        ours = tuple(record for record in node.processes if record.pid not in before)
        self._set_node(msgspec.structs.replace(node, processes=ours))

    def slot_number(self, slot: str) -> int | None:
        return next((n for n in sorted(self.state.nodes) if local_node.slot_of(n) == slot), None)


def remove_own() -> None:
    """Remove all namespaces and links of this process, also after an interruption."""
    Namespaces(os.getpid(), OCTETS[0]).remove()


def sweep() -> None:
    """Remove namespaces and links of processes that have ended."""
    found = NAMESPACE.findall(_ip("netns", "list")) + LINK.findall(_ip("-o", "link"))
    for pid in dict.fromkeys(int(pid) for _, pid in found):
        if not psutil.pid_exists(pid):
            Namespaces(pid, OCTETS[0]).remove()


def _ip(*words: str, fail: bool = True) -> str:
    command = ["ip", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except subprocess.TimeoutExpired:
        raise NetworkFailed(f"ip {' '.join(words)}: not done after {COMMAND_S:g} s") from None
    if done.returncode and fail:
        raise NetworkFailed(f"ip {' '.join(words)}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout
