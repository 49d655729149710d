"""The settings of a deployment: those of `ebla up`, from a YAML file, from flags, or both.

    name: ebla
    data_dir: /mnt/fast/ebla
    slots: [host-1, host-2, host-3]
    masters: 2
    journals: 3
    tablet_server:
      memtable_bytes: 134217728
    master:
      unresponsive_s: 5

A flag overrides the file, the file overrides the deployment's saved settings, and these override
the defaults. An unknown key is refused: otherwise a setting with a typing error would be silently
ignored.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import yaml

from ebla.actors.journal.messages import JournalId
from ebla.actors.journal.options import JournalNodeOptions, JournalOptions, LeaseLimits, valid_nodes
from ebla.actors.ledger.auditor.options import AuditorOptions
from ebla.actors.ledger.store.options import LedgerStoreOptions
from ebla.actors.ledger.worker.options import WorkerOptions
from ebla.actors.master.options import GroupOptions, MasterOptions
from ebla.actors.tablet.options import TabletServerOptions
from ebla.storage.errors import InvalidArgument

T = TypeVar("T", bound=msgspec.Struct)

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
TABLES = (
    "master",
    "group",
    "lease",
    "journal",
    "journal_node",
    "tablet_server",
    "ledger_store",
    "replication_worker",
    "auditor",
)
# One role's lease is as long as the patience of others allows, so all roles must have the same.
TIMES = {
    "tablet_server": ("lease_s", "election_s_min", "beacon_s", "beacon_lease_s"),
    "master": ("detector",),
}


class DeploymentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of `ebla up`. `data_dir`: where each host keeps its roles
    (`<data_dir>/<slot>/<role>`), the same path on every host; `data_dirs`: further disks for
    tablets. `slots` empty: every host. `journals`: the number of journal nodes that keep the
    masters' catalog; a single one is in the process of the single master. If `masters` or
    `journals` is not given, its value follows from the deployment and its hosts
    (placement/journal/catalog.py). `logs`: every host has a ledger store and a
    replication worker, and two of them have an auditor. The tables (TABLES) hold deviations from
    the roles' own defaults: MasterOptions, GroupOptions, LeaseLimits, JournalOptions,
    JournalNodeOptions, TabletServerOptions, LedgerStoreOptions, WorkerOptions, AuditorOptions."""

    name: str = "ebla"
    data_dir: str = ""
    data_dirs: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    masters: int | None = None
    journals: int | None = None
    logs: bool = False
    master: dict[str, Any] = {}
    group: dict[str, Any] = {}
    lease: dict[str, Any] = {}
    journal: dict[str, Any] = {}
    journal_node: dict[str, Any] = {}
    tablet_server: dict[str, Any] = {}
    ledger_store: dict[str, Any] = {}
    replication_worker: dict[str, Any] = {}
    auditor: dict[str, Any] = {}

    @property
    def namespace(self) -> str:
        return f"ebla-{self.name}"

    def master_options(self) -> MasterOptions:
        return _options("master", MasterOptions, self.master, {})

    def journal_options(self, journal: JournalId, nodes: tuple[str, ...]) -> JournalOptions:
        placed = {"journal": journal, "nodes": nodes}
        return _options("journal", JournalOptions, self.journal, placed)

    def journal_node_options(self, masters: tuple[str, ...]) -> JournalNodeOptions:
        return _options("journal_node", JournalNodeOptions, self.journal_node, {"masters": masters})

    def group_options(self, masters: tuple[str, ...], journal: JournalOptions) -> GroupOptions:
        placed = {
            "masters": masters,
            "journal": journal,
            "lease": _options("lease", LeaseLimits, self.lease, {}),
            "master": self.master_options(),
            "node": self.journal_node_options(masters),
        }
        return _options("group", GroupOptions, self.group, placed)

    def tablet_server_options(self, masters: tuple[str, ...], host: str, version: str) -> TabletServerOptions:
        placed = {"masters": masters, "host": host, "version": version}
        return _options("tablet_server", TabletServerOptions, self.tablet_server, placed)

    def ledger_store_options(self, masters: tuple[str, ...], host: str) -> LedgerStoreOptions:
        placed = {"masters": masters, "host": host}
        return _options("ledger_store", LedgerStoreOptions, self.ledger_store, placed)

    def worker_options(self, masters: tuple[str, ...], store: str) -> WorkerOptions:
        placed = {"masters": masters, "store": store}
        return _options("replication_worker", WorkerOptions, self.replication_worker, placed)

    def auditor_options(self, masters: tuple[str, ...]) -> AuditorOptions:
        return _options("auditor", AuditorOptions, self.auditor, {"masters": masters})


def default_data_dir(name: str) -> str:
    return str(Path.home() / ".ebla" / name)


def read_file(path: Path) -> dict[str, Any]:
    """Read the settings from a YAML file."""
    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}; name a file of settings") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} is not YAML: {error}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidArgument(f"{path} must hold `key: value` settings, not a {type(found).__name__}")
    return found


def configure(settings: Mapping[str, Any], base: DeploymentConfig | None = None) -> DeploymentConfig:
    """Override `base` (the defaults, or the saved settings) with the settings, and validate the result.

    The tables (TABLES) are overridden key by key; None resets a setting to its default.
    """
    _refuse_unknown(settings, DeploymentConfig.__struct_fields__, "")
    values = msgspec.to_builtins(base or DeploymentConfig())
    for key, value in settings.items():
        if key in TABLES and isinstance(value, Mapping):
            values[key] = {k: v for k, v in {**values[key], **value}.items() if v is not None}
        elif value is None:
            values[key] = msgspec.to_builtins(DeploymentConfig())[key]
        else:
            values[key] = value
    config = _convert("", DeploymentConfig, values)
    directory = config.data_dir or default_data_dir(config.name)
    spread = tuple(map(_absolute, config.data_dirs))
    config = msgspec.structs.replace(config, data_dir=_absolute(directory), data_dirs=spread)
    validate(config)
    return config


def _absolute(directory: str) -> str:
    """Links stay: they may lead elsewhere on another host."""
    return os.path.normpath(Path(directory).expanduser().absolute())


def validate(config: DeploymentConfig) -> None:
    """Raise InvalidArgument, which names the setting and the remedy, if the settings are invalid.
    Settings that were not given are not checked: they follow from the deployment and its hosts."""
    if not NAME.fullmatch(config.name):
        raise InvalidArgument(
            f"name must be up to 40 lower-case letters, digits and hyphens, not {config.name!r}"
        )
    for key in ("slots", "data_dirs"):
        twice = sorted({value for value in getattr(config, key) if getattr(config, key).count(value) > 1})
        if twice:
            raise InvalidArgument(f"{key} names {', '.join(twice)} twice; name each once")
    if config.data_dir in config.data_dirs:
        raise InvalidArgument("data_dirs must not repeat data_dir; name the further disks only")
    _validate_masters(config)
    masters, journals = addresses("master", config.masters or 1), addresses("journal", config.journals or 1)
    config.group_options(masters, config.journal_options(JournalId("catalog", ""), journals))
    config.journal_node_options(masters)
    servers = config.tablet_server_options(masters, "host", "")
    beacons = {"beacon_s": servers.beacon_s, "lease_s": servers.beacon_lease_s}
    try:
        msgspec.structs.replace(config.master_options().detector, **beacons).validate()
    except InvalidArgument as error:
        raise InvalidArgument(f"master.detector, with the beacons of tablet_server: {error}") from error
    config.ledger_store_options(masters, "host")
    config.worker_options(masters, "ledger-store/host")
    config.auditor_options(masters)


def changed_times(before: DeploymentConfig, config: DeploymentConfig) -> list[str]:
    """The settings on which the leases of other roles rest, and that differ."""
    return [
        f"{table}.{key}"
        for table, keys in TIMES.items()
        for key in keys
        if getattr(before, table).get(key) != getattr(config, table).get(key)
    ]


def _validate_masters(config: DeploymentConfig) -> None:
    masters = 1 if config.masters is None else config.masters
    if masters < 1:
        raise InvalidArgument(f"masters must be at least 1, not {masters}")
    if config.journals is not None and config.journals < 1:
        raise InvalidArgument(f"journals must be 1 or a larger odd number, not {config.journals}")
    if masters > 1 and config.journals == 1:
        raise InvalidArgument(
            f"masters is {masters}, but the journal has one node, in the process of master/0: no other master could take over from "
            "that one; set journals to 3, or masters to 1"
        )
    if config.journals:
        try:
            valid_nodes(addresses("journal", config.journals))
        except InvalidArgument as error:
            raise InvalidArgument(
                f"journals must be an odd number: {config.journals} nodes bear the loss of "
                f"{(config.journals - 1) // 2}, as {config.journals - 1} do; set journals to {config.journals - 1} or "
                f"{config.journals + 1}"
            ) from error
    for key in ("masters", "journals"):
        wanted = getattr(config, key)
        if config.slots and wanted is not None and wanted > len(config.slots):
            raise InvalidArgument(
                f"{key} is {wanted}, but slots names only {', '.join(config.slots)}; lower {key}, or name more slots"
            )


def addresses(role: str, count: int) -> tuple[str, ...]:
    """The addresses of the masters, or of the journal nodes, in the order of their slots."""
    return tuple(f"{role}/{number}" for number in range(count))


def _options(table: str, kind: type[T], own: Mapping[str, Any], placed: Mapping[str, Any]) -> T:
    """The role's options: the operator's `own`, and those that placement sets (`placed`)."""
    known = tuple(key for key in kind.__struct_fields__ if key not in placed)
    _refuse_unknown(own, known, f"{table}.")
    options = _convert(f"{table}.", kind, {**own, **placed})
    try:
        cast(Any, options).validate()
    except InvalidArgument as error:
        raise InvalidArgument(f"{table}: {error}") from error
    return options


def _refuse_unknown(keys: Any, known: tuple[str, ...], prefix: str) -> None:
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"the settings are {', '.join(known)}"
            raise InvalidArgument(f"{prefix}{key} is no setting; {hint}")


def _convert(prefix: str, kind: type[T], values: Mapping[str, Any]) -> T:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        field = prefix + where.strip("`.").replace("`", "")
        raise InvalidArgument(f"{field}: {what[0].lower()}{what[1:]}; correct the setting") from error
