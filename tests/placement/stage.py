"""Hosts with disks, and the actors and placement groups of a Ray cluster over them: `ebla up` and `down` without Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import ray

from ebla.actors.errors import Unavailable
from ebla.actors.ray_shell import Assignment, Pong
from ebla.placement import asking, launch, state
from ebla.placement.deploy import fleet, groups, memory
from ebla.placement.deploy.groups import Group
from ebla.placement.deploy.slots import Host, Survey
from ebla.placement.journal import journals
from ebla.placement.launch import DownReport, UpReport
from ebla.placement.state import Deployment

SILENT = "it does not answer"


def running(address: str, root: str) -> Pong:
    return Pong(address, root.split("/")[-2], "running", 1, "", False, 0, root=root)


@dataclass
class Stage:
    """`here`: the data directory on the host of the command, which each host of `hosts` has on its own disk. `actors`: their
    answers. `placed`: the slots of the placement groups. `on_removal`: what another process does when a group is removed."""

    root: Path
    hosts: list[str]
    actors: dict[str, Pong | str] = field(default_factory=dict)
    placed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    on_removal: Callable[[], None] = lambda: None

    @property
    def here(self) -> str:
        return str(self.root / "here")

    def disk(self, slot: str) -> str:
        return str(self.root / slot)

    def up(self, settings: Mapping[str, Any] | None = None, **more: Any) -> UpReport:
        return launch.up({"name": "t", "data_dir": self.here, **(settings or {}), **more}, timeout_s=1.0)

    def down(self) -> DownReport:
        return launch.down("t", timeout_s=1.0)

    def forget_ray(self, *hosts: str) -> None:
        """A new Ray cluster, of these hosts."""
        self.hosts = list(hosts)
        self.actors.clear()
        self.placed.clear()

    def saved(self, slot: str) -> Deployment:
        found = state.load(self.disk(slot))
        assert found is not None
        return found

    def servers(self) -> dict[str, str]:
        """The directory of each tablet server that runs."""
        found = sorted(self.actors.items())
        return {
            address: pong.root
            for address, pong in found
            if isinstance(pong, Pong) and address.startswith("tablet-server/")
        }

    # -- what is replaced

    def survey(self) -> Survey:
        return Survey(
            tuple(Host(slot, f"id-{slot}", f"10.0.0.{n}") for n, slot in enumerate(sorted(self.hosts)))
        )

    def named(self, namespace: str) -> list[str]:
        return sorted(self.actors)

    def find(self, namespace: str, address: str) -> Any:
        if address not in self.actors:
            return None
        stop = SimpleNamespace(remote=lambda: self.actors.pop(address, None))
        return SimpleNamespace(address=address, shutdown=stop)

    def poll(self, handles: Mapping[str, Any], *rest: Any) -> dict[str, Pong | str]:
        return {address: self.actors[handle.address] for address, handle in handles.items()}

    def kill(self, handle: Any, no_restart: bool) -> None:
        assert no_restart
        del self.actors[handle.address]

    def launching(self, role: type) -> Any:
        def launched(data: bytes) -> Any:
            given = msgspec.msgpack.decode(data, type=Assignment)
            self.actors[given.address] = running(given.address, given.root)
            return self.find(given.namespace, given.address)

        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=launched))

    def present(self, deployment: str) -> list[Group]:
        return [
            Group(name, name, "CREATED", tuple(f"id-{slot}" for slot in slots))
            for name, slots in self.placed.items()
        ]

    def create(self, name: str, hosts: Sequence[Host]) -> None:
        self.placed[name] = tuple(host.slot for host in hosts)

    def remove(self, group: Group) -> None:
        del self.placed[group.name]
        for address in self.actors:
            self.actors[address] = SILENT  # Ray ends their processes, and keeps their names
        self.on_removal()

    def on_each(
        self, hosts: Sequence[Host], work: Any, data_dir: str, *more: Any, needed: bool = True
    ) -> Any:
        assert data_dir == self.here
        asked = [host.slot for host in hosts if host.slot not in self.silent]
        if needed and len(asked) < len(hosts):
            raise Unavailable(f"{', '.join(self.silent)} gives no answer")
        return {slot: work(self.disk(slot), *more) for slot in asked}

    def take_the_place_of_ray(self, patch: pytest.MonkeyPatch) -> None:
        replaced: dict[Any, dict[str, Any]] = {
            launch: {"_require_connected": lambda: None, "_survey": self.survey, "poll": self.poll},
            fleet: {"poll": self.poll, "remote_class": self.launching},
            asking: {},
            groups: {"present": self.present, "create": self.create, "remove": self.remove},
            journals: {"make": lambda namespace, options: options.journal.id, "look": lambda *given: []},
            memory: {"_on_each": self.on_each},
            ray: {"kill": self.kill, "wait": lambda goodbyes, **more: (goodbyes, [])},
        }
        for module in (launch, fleet, asking):
            replaced[module] |= {"named_actors": self.named, "find_actor": self.find}
        for module, names in replaced.items():
            for name, substitute in names.items():
                patch.setattr(module, name, substitute)
        patch.setattr(groups, "strategy", lambda group, index: None)
        patch.setattr(launch, "GOODBYE_S", 0.05)
