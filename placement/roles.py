"""Which roles a deployment consists of, and what each is told. The role classes are named, not imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from ebla.actors.ray_shell import Assignment, dotted
from ebla.placement.config import DeploymentConfig
from ebla.placement.slots import Seats

MASTER_ROLE = "ebla.actors.master.server:Master"
TABLET_SERVER_ROLE = "ebla.actors.tablet.server:TabletServer"


@dataclass(frozen=True)
class RoleSpec:
    """One role to be there: its address, its slot, its class as `package.module:Class`, its options, and the name
    of its directory under `<data_dir>/<slot>/`."""

    address: str
    slot: str
    role: str
    options: msgspec.Struct
    directory: str
    on_data_dirs: bool = False

    def assignment(self, config: DeploymentConfig) -> Assignment:
        under = Path(self.slot) / self.directory
        spread = config.data_dirs if self.on_data_dirs else ()
        return Assignment(
            address=self.address,
            slot=self.slot,
            namespace=config.namespace,
            role=self.role,
            options_type=dotted(type(self.options)),
            options=msgspec.msgpack.encode(self.options),
            root=str(Path(config.data_dir) / under),
            data_dirs=tuple(str(Path(path) / under) for path in spread),
        )


PlanRoles = Callable[[DeploymentConfig, Seats], Sequence[RoleSpec]]


def plan_roles(config: DeploymentConfig, seats: Seats) -> list[RoleSpec]:
    """ebla's own roles: masters on their seats, a tablet server on every slot."""
    masters = tuple(f"master/{number}" for number in range(len(seats.masters)))
    specs = [
        RoleSpec(address, slot, MASTER_ROLE, config.master_options(), "master")
        for address, slot in zip(masters, seats.masters, strict=True)
    ]
    release = installed_version()
    for slot in seats.tablet_servers:
        options = config.tablet_server_options(masters, slot, release)
        address = f"tablet-server/{slot}"
        specs.append(RoleSpec(address, slot, TABLET_SERVER_ROLE, options, "tablet-server", on_data_dirs=True))
    return specs


def installed_version() -> str:
    try:
        return version("ebla")
    except PackageNotFoundError:
        return "unknown"
