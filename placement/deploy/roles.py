"""The roles of a deployment, and the launch configuration of each. Role classes are named, not imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from ebla.actors.journal.messages import JournalId
from ebla.actors.journal.options import JournalOptions
from ebla.actors.ray_shell import Assignment, dotted
from ebla.placement.config import DeploymentConfig, addresses
from ebla.placement.deploy.slots import Seats

MASTER_ROLE = "ebla.actors.master.leadership.group:Master"
JOURNAL_NODE_ROLE = "ebla.actors.journal.node.node:JournalNode"
TABLET_SERVER_ROLE = "ebla.actors.tablet.server:TabletServer"
LEDGER_STORE_ROLE = "ebla.actors.ledger.store.store:LedgerStore"
WORKER_ROLE = "ebla.actors.ledger.worker.worker:ReplicationWorker"
AUDITOR_ROLE = "ebla.actors.ledger.auditor.auditor:Auditor"
AUDITORS = 2  # of which one is elected
CATALOG = "catalog"  # the journal's name


@dataclass(frozen=True)
class RoleSpec:
    """One role that the deployment needs: its address, its slot, its class as
    `package.module:Class`, its options, and the name of its directory under `<data_dir>/<slot>/`.
    `sets_aside`: the role may start again with an empty directory, because its peers fill it
    again."""

    address: str
    slot: str
    role: str
    options: msgspec.Struct
    directory: str
    on_data_dirs: bool = False
    sets_aside: bool = False

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
            sets_aside=self.sets_aside,
        )


PlanRoles = Callable[[DeploymentConfig, Seats, str], Sequence[RoleSpec]]


def plan_roles(config: DeploymentConfig, seats: Seats, journal: str) -> list[RoleSpec]:
    """The roles of ebla: journal nodes and masters on their slots, a tablet server on every slot,
    and the roles of logs if the deployment has logs.
    `journal` is the id of the masters' journal."""
    options = journal_of(config, seats, journal)
    masters = addresses("master", len(seats.masters))
    node_options = config.journal_node_options(masters)
    specs = [
        RoleSpec(address, slot, JOURNAL_NODE_ROLE, node_options, "journal")
        for address, slot in zip(options.nodes, seats.journals, strict=True)
        if address not in masters
    ]
    group = config.group_options(masters, options)
    specs += [
        RoleSpec(address, slot, MASTER_ROLE, group, "master")
        for address, slot in zip(masters, seats.masters, strict=True)
    ]
    release = installed_version()
    for slot in seats.tablet_servers:
        server = config.tablet_server_options(masters, slot, release)
        address = f"tablet-server/{slot}"
        spec = RoleSpec(
            address, slot, TABLET_SERVER_ROLE, server, "tablet-server", on_data_dirs=True, sets_aside=True
        )
        specs.append(spec)
    return specs + (_plan_logs(config, seats, masters) if config.logs else [])


def _plan_logs(config: DeploymentConfig, seats: Seats, masters: tuple[str, ...]) -> list[RoleSpec]:
    """A ledger store and a replication worker on every slot, and an auditor on the first two. Only the
    stores have data."""
    specs = []
    for slot in seats.tablet_servers:
        options = config.ledger_store_options(masters, slot)
        store = RoleSpec(
            f"ledger-store/{slot}", slot, LEDGER_STORE_ROLE, options, "ledger-store", sets_aside=True
        )
        work = config.worker_options(masters, store.address)
        address = f"replication-worker/{slot}"
        specs += [store, RoleSpec(address, slot, WORKER_ROLE, work, "replication-worker", sets_aside=True)]
    audit = config.auditor_options(masters)
    specs += [
        RoleSpec(address, slot, AUDITOR_ROLE, audit, "auditor", sets_aside=True)
        for address, slot in zip(addresses("auditor", AUDITORS), seats.tablet_servers, strict=False)
    ]
    return specs


def journal_of(config: DeploymentConfig, seats: Seats, journal: str) -> JournalOptions:
    """The masters' journal. A journal that has grown has its second set of nodes."""
    nodes = addresses("journal", len(seats.journals))
    version = 1
    if seats.in_master:
        nodes = (*addresses("master", 1), *nodes[1:])
        version = 1 if len(nodes) == 1 else 2
    return config.journal_options(JournalId(CATALOG, journal, version), nodes)


def installed_version() -> str:
    try:
        return version("ebla")
    except PackageNotFoundError:
        return "unknown"
