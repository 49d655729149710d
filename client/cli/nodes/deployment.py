"""`ebla up | down | status`: the deployment as a whole, and its local Ray cluster, if it has one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs

from ebla.cli.frame import quiet, views
from ebla.cli.frame.connection import name_of, reach, within
from ebla.cli.frame.options import Yes, option
from ebla.cli.frame.problems import FAILED, Usage
from ebla.cli.frame.render import facts, listing
from ebla.cli.frame.ui import NAME, Ui
from ebla.cli.nodes import again
from ebla.cli.nodes.again import CPUS
from ebla.cli.nodes.local import document as document_of
from ebla.cli.nodes.local import (
    exposure,
    failure_remembered,
    is_meant,
    local_cluster,
    require_room,
    undone_on_failure,
    wanted,
)
from ebla.storage.errors import add_note
from ebla.wording import age, count, host_of

if TYPE_CHECKING:
    from ebla.health.verdicts import ClusterHealth
    from ebla.operate.quarantine import Kept
    from ebla.operate.waiting import Progress
    from ebla.placement.asking import RoleStatus
    from ebla.placement.config import DeploymentConfig
    from ebla.placement.launch import DownReport, StatusReport, UpReport
    from ebla.placement.local.cluster import LocalCluster

BY_HOST = (
    "tablet-server/",
    "ledger-store/",
    "replication-worker/",
)  # roles whose address ends with their host

# -- up ------------------------------------------------------------------------------------------------------


UpLocal = Annotated[
    int | None, option("--local N", "Start a Ray cluster of N nodes on this machine first.", min=1)
]
UpDataDir = Annotated[
    str | None,
    option(
        "--data-dir DIR",
        "Data directory of each host (default: that of the last `ebla up`, else ~/.ebla/NAME).",
    ),
]
UpJournals = Annotated[
    int | None,
    option(
        "--journals N",
        "Number of journal nodes that keep the catalog; an odd number. One becomes three while it runs.",
    ),
]
UpLogs = Annotated[
    bool | None,
    option("--logs", "Give each host a ledger store now. The first log does it, too."),
]
UpSet = Annotated[list[str] | None, option("--set KEY=VALUE", "A setting, such as master.tables_max=20000.")]
UpCpus = Annotated[int, option("--cpus N", "Number of CPUs that each local node offers to Ray.", min=1)]
UpDashboard = Annotated[
    bool, option("--dashboard/--no-dashboard", "Start Ray's dashboard on the local cluster; jobs need it.")
]


def up(
    ui: Ui,
    config: Annotated[
        Path | None, option("--config FILE", "Settings in YAML; flags override the file.")
    ] = None,
    local: UpLocal = None,
    data_dir: UpDataDir = None,
    slot: Annotated[list[str] | None, option("--slot SLOT", "Use these hosts only; repeatable.")] = None,
    masters: Annotated[
        int | None, option("--masters N", "Number of masters; several need --journals.")
    ] = None,
    journals: UpJournals = None,
    logs: UpLogs = None,
    set_: UpSet = None,
    cpus: UpCpus = CPUS,
    auth: Annotated[
        str | None, option("--auth MODE", "Authentication of the local cluster: token or disabled.")
    ] = None,
    dashboard: UpDashboard = True,
    timeout: Annotated[float, option("--timeout SECONDS", "Longest wait.", min=1)] = 120.0,
) -> None:
    """Start ebla, or the roles that do not run.

    Launches the missing roles and adopts the others: in the running Ray cluster, or with --local N in a cluster of N nodes
    that it starts on this machine. Data in the directory is kept. A second `ebla up` changes nothing.
    """
    quiet.before_ray(ui.verbose)
    from ebla.placement import launch

    flags = {
        "data_dir": data_dir,
        "slots": slot or None,
        "masters": masters,
        "journals": journals,
        "logs": logs,
    }
    given, settings = _configured(ui, config, flags, set_)
    require_room(settings, local)
    with failure_remembered(local), ui.working(f"up {settings.name}") as progress:
        cluster, started = local_cluster(ui, local, cpus, auth, dashboard, timeout, progress)
        with undone_on_failure(cluster, started):
            progress.step("connecting to Ray")
            address = reach(ui)
            report = launch.up(given, progress=progress.step, timeout_s=timeout)
    _remember(ui, cluster, report)
    warnings = [*report.warnings, *exposure(cluster, address)]
    document = {
        **structs.asdict(report),
        "warnings": warnings,
        "ready": report.ready,
        "changed": bool(report.launched or started),
        "ray_address": address,
        "local": document_of(cluster, started),
    }
    ui.show(document, *_up_parts(report, address, cluster, started))
    if not ui.json:
        for warning in warnings:
            ui.warn(warning)
    if not report.ready:
        raise typer.Exit(FAILED)


def _configured(
    ui: Ui, file: Path | None, flags: dict[str, Any], assigned: list[str] | None
) -> tuple[dict[str, Any], DeploymentConfig]:
    """The given settings, where flags override the file; and with those that are saved on this host and the defaults, to
    refuse what cannot work before anything starts. Other hosts may have saved newer ones."""
    from ebla.cli.frame import places
    from ebla.placement import state
    from ebla.placement.config import configure, read_file

    settings = read_file(file) if file is not None else {}
    for text in assigned or ():
        _assign(settings, text)
    settings.update({key: value for key, value in flags.items() if value is not None})
    settings["name"] = ui.common.name or settings.get("name", NAME)
    if settings["name"] in places.known():  # otherwise roles that run elsewhere may name it
        settings.setdefault("data_dir", places.data_dir(settings["name"]))
    configured = configure(settings)
    before = state.load(configured.data_dir)
    if before is None:
        return settings, configured
    found = configure(settings, before.config)
    if found.slots and "slots" not in settings:
        ui.note(f"on the hosts of the last `ebla up` only: {', '.join(found.slots)}; --slot names others")
    return settings, found


def _assign(settings: dict[str, Any], text: str) -> None:
    """Add a setting such as `tablet_server.memtable_bytes=1000000`; the value is YAML."""
    import yaml

    path, equals, value = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys) or len(keys) > 2:
        raise Usage(f"--set {text!r} is not key=value or table.key=value", option="--set")
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise Usage(f"--set {text!r}: the value is not YAML: {error}", option="--set") from None
    if len(keys) == 1:
        settings[keys[0]] = read
        return
    table = settings.setdefault(keys[0], {})
    if not isinstance(table, dict):
        raise Usage(f"--set {text!r}: {keys[0]} is not a table of settings", option="--set")
    table[keys[1]] = read


def _up_parts(report: UpReport, address: str, cluster: LocalCluster | None, started: list[str]) -> list[Any]:
    from ebla.actors.ray_shell import RUNNING

    roles = _role_count([role for role in report.roles if role.state == RUNNING])
    fresh = len(started) == len(cluster.slots) if cluster is not None else False
    if not report.ready:
        head = f"deployment {report.name} is up only in part ({roles or 'no role'} running)"
    elif not report.launched and not started:
        head = f"nothing changed: deployment {report.name} is up already ({roles})"
    else:
        head = f"deployment {report.name} is up: {roles}"
        if report.launched and report.adopted:
            head += f"; launched {', '.join(report.launched)}"
    if started and not fresh:
        head += f"; started again: {', '.join(started)}"
    pairs: list[tuple[str, Any]] = [("ray", address), ("data", f"{report.data_dir} on every host")]
    if cluster is not None:
        pairs.append(("nodes", f"{count(len(cluster.slots), 'local node')}: {', '.join(cluster.slots)}"))
        if cluster.state.dashboard_url:
            pairs.append(("dashboard", cluster.state.dashboard_url))
    parts: list[Any] = [head, facts(pairs)]
    if fresh and cluster is not None:
        parts += ["", "for Ray's own commands (ray status, ray job submit):"]
        parts += [f"  export {name}={shlex.quote(value)}" for name, value in cluster.environment().items()]
    if not report.ready:
        parts += ["", _roles(list(report.roles), report.warnings)]
    return parts


def _remember(ui: Ui, cluster: LocalCluster | None, report: UpReport) -> None:
    """Keep what later commands need: where the data is, how to start all of it again, and names for completion."""
    from ebla.cli.frame import places

    places.remember(report.name, report.data_dir)
    places.remember_up(
        report.name, again.up_command(report.name, ui.common.address, cluster, report.data_dir)
    )
    if report.ready and ui.interactive and report.name == name_of(ui):
        within(ui, lambda cluster: cluster.leave())  # which learns the names


def _role_count(roles: list[RoleStatus]) -> str:
    """How many there are of each kind. journal/0 counts too where it is in the process of master/0."""
    addresses = [role.address for role in roles]
    if any(each.startswith("journal/") for each in addresses) and "journal/0" not in addresses:
        addresses.append("journal/0")
    kinds = [each.partition("/")[0] for each in addresses]
    nouns = {
        "master": "master",
        "journal": "journal node",
        "tablet-server": "tablet server",
        "ledger-store": "ledger store",
        "replication-worker": "replication worker",
        "auditor": "auditor",
    }
    return ", ".join(count(kinds.count(kind), noun) for kind, noun in nouns.items() if kind in kinds)


# -- down ----------------------------------------------------------------------------------------------------

INTERRUPTED_DOWN = (
    "some roles may have stopped; `ebla down` stops the others, and `ebla up` starts all of them again"
)


def down(
    ui: Ui,
    yes: Yes = False,
    timeout: Annotated[
        float, option("--timeout SECONDS", "Longest wait; then the other roles are killed.", min=1)
    ] = 60.0,
) -> None:
    """Stop ebla and its local Ray cluster, if it runs in one. The data stays."""
    quiet.before_ray(ui.verbose)
    from ebla.cli.frame import places
    from ebla.placement.connection import disconnect_ray, local_directory
    from ebla.placement.local import failure
    from ebla.placement.local.cluster import LocalCluster

    name = name_of(ui)
    found = LocalCluster.find(local_directory())
    found = found if found is not None and is_meant(ui, found) else None
    what = f"Stop deployment {name}" + (" and the local Ray cluster" if found is not None else "")
    ui.confirm(f"{what}? The data stays.", yes)
    with ui.working(f"down {name}") as progress:
        report = None
        if found is None or found.running:
            report = _down(ui, name, timeout, progress, found is None)
        others = _others(name) if report is not None and found is not None else []
        data = again.directories(name, report)
        local = found if not others else None
        up: str | None = again.up_command(name, ui.common.address, local, again.data_dir(data))
        if found is None and report is None:
            up = places.up_command(name) or (up if data else None)
        if found is not None and not others:
            disconnect_ray()
            progress.step("ending the local Ray cluster")
            found.stop()
    places.remember_names(name, {})
    if found is not None or wanted(ui) is None:
        failure.forget(local_directory())
    ended = found is not None and not others
    document = {
        "name": name,
        "changed": bool(ended or (report and (report.stopped or report.killed))),
        "stopped": list(report.stopped) if report else [],
        "killed": list(report.killed) if report else [],
        "local_cluster_ended": ended,
        "others_running": others,
        "data_dir": again.data_dir(data),
        "up_command": up,
    }
    ui.show(document, *_down_parts(name, report, ended, others, data, up))


def _down(ui: Ui, name: str, timeout_s: float, progress: Progress, anywhere: bool) -> DownReport | None:
    """Stop the deployment. None if there is no Ray cluster, and none was named: then no role can run."""
    from ebla.errors import NoCluster

    progress.step("connecting to Ray")
    try:
        reach(ui)
    except NoCluster:
        if anywhere and wanted(ui) is None:
            return None
        raise
    from ebla.placement import launch

    try:
        return launch.down(name, progress=progress.step, timeout_s=timeout_s)
    except (KeyboardInterrupt, SystemExit) as signal:
        add_note(signal, INTERRUPTED_DOWN)
        raise


def _others(name: str) -> list[str]:
    """Further deployments in the same Ray cluster, also those of other users."""
    from ebla.placement.asking import deployments

    return [other for other in deployments() if other != name]


def _down_parts(
    name: str,
    report: DownReport | None,
    ended: bool,
    others: list[str],
    data: tuple[str, ...],
    up: str | None,
) -> list[Any]:
    stopped, killed = (report.stopped, report.killed) if report else ((), ())
    if report is None and not ended:
        head = f"deployment {name} was not up: no local Ray cluster runs"
    elif not stopped and not killed:
        head = f"deployment {name} was not up"
    elif killed:
        head = f"deployment {name} is down: {count(len(stopped), 'role')} stopped, {', '.join(killed)} had to be ended"
    else:
        head = f"deployment {name} is down: {count(len(stopped), 'role')} stopped"
    parts: list[Any] = [head]
    if ended:
        parts.append("the local Ray cluster has ended")
    if others:
        parts.append(f"the local Ray cluster continues: {', '.join(others)} still runs in it")
    if up is None:
        return [*parts, "it has no data here; `ebla up --local 4` starts it on this machine"]
    return [*parts, again.sentence(data), f"  {up}"]


# -- status --------------------------------------------------------------------------------------------------


def status(ui: Ui) -> None:
    """Show masters, servers and tables, and one line about their health. Exit status 0: all healthy, 1: not."""
    name = name_of(ui)
    address = reach(ui)
    from ebla.cli.frame import places
    from ebla.placement import launch

    report = launch.status(name)
    health, kept = _health(ui) if report.roles else (None, None)
    document = {
        **structs.asdict(report),
        "hosts": report.hosts.hosts,
        "up": bool(report.roles),
        "ray_address": address,
        "health": health,
        "quarantine": kept,
    }
    if health is None or kept is None:
        start = again.up_command(name, ui.common.address, None, places.data_dir(name))
        ui.show(
            document,
            f"deployment {name} is not up in the Ray cluster at {address}; `{start}` starts it",
        )
        raise typer.Exit(FAILED)
    ui.show(document, *_status_parts(ui, report, health, address), *views.quarantined(kept))
    if not health.healthy:
        raise typer.Exit(FAILED)


def _health(ui: Ui) -> tuple[ClusterHealth, Kept]:
    from ebla.operate.checking import check_all

    with ui.working("status") as progress:
        return within(ui, lambda cluster: check_all(cluster, None, 0.0, progress))


def _status_parts(ui: Ui, report: StatusReport, health: ClusterHealth, address: str) -> list[Any]:
    hosts = report.hosts.hosts
    parts: list[Any] = [
        f"deployment {report.name} in the Ray cluster at {address}, {count(len(hosts), 'host')}",
        "",
        _roles(list(report.roles), health.reasons),
        "",
    ]
    if health.tables:
        parts += [*views.tables(health, ui), ""]
    return [*parts, views.health_line(health), *views.reasons(health), *views.warnings(health)]


def _roles(roles: list[RoleStatus], reported: Sequence[str] = ()) -> Any:
    """The roles; an error that `reported` has is not repeated."""

    def remark(role: RoleStatus) -> str:
        named = re.compile(rf"{re.escape(role.address)}(?![\w-])")
        if role.error and not any(named.search(reason) for reason in reported):
            return role.error
        return "restarted by Ray" if role.restarted else ""

    now = datetime.now(timezone.utc).timestamp()
    rows = (
        (
            role.address.partition("/")[0] if role.address.startswith(BY_HOST) else role.address,
            role.slot or host_of(role.address),
            role.state,
            str(role.pid) if role.pid else "-",
            age(now - role.started_us / 1e6) if role.started_us else "-",
            remark(role),
        )
        for role in roles
    )
    return listing(("ROLE", "HOST", "STATE", "PID>", "UP FOR>", "REMARK"), rows)
