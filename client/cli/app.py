"""`ebla` and its commands, in the order in which an operator meets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ebla.cli.chaos import chaos, replaying
from ebla.cli.data import feeding, verifying
from ebla.cli.frame.commands import Address, Json, Name, RootGroup, Verbose, alone, command, group
from ebla.cli.frame.ui import Common
from ebla.cli.masters import coord, journals, masters
from ebla.cli.nodes import check, deployment, draining, metrics, nodes
from ebla.cli.tables import altering, rows, scanning, tables
from ebla.cli.tablets import copies, forcing, members, quarantine, tablets

app = group("Durable, replicated tables inside a Ray cluster.")
app.info.cls = RootGroup


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"ebla {version('ebla')}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    address: Address = None,
    name: Name = None,
    json: Json = False,
    verbose: Verbose = 0,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Durable, replicated tables inside a Ray cluster.

    Start with `ebla up` (in a running Ray cluster, or `ebla up --local 4` on this machine), then run `ebla status`.
    """
    ctx.obj = Common(address, name, json, verbose)


def _add(to: typer.Typer, **commands: Callable[..., None]) -> None:
    for name, function in commands.items():
        command(to, name.replace("_", "-"), function)


def _group(name: str, help: str, to: typer.Typer = app, **commands: Callable[..., None]) -> typer.Typer:
    made = group(help)
    to.add_typer(made, name=name)
    _add(made, **commands)
    return made


_add(
    app,
    up=deployment.up,
    down=deployment.down,
    status=deployment.status,
    check=check.check,
    metrics=metrics.metrics,
    feed=feeding.feed,
    verify=verifying.verify,
    demo=verifying.demo,
)
hosts = group("Nodes: the tablet servers and their hosts; maintenance, draining and forgetting.", alone=True)
app.add_typer(hosts, name="nodes")
alone(hosts, nodes.nodes)
_add(hosts, drain=draining.drain, maintain=draining.maintain, forget=draining.forget)
_group(
    "table",
    "Tables: create, list, describe, alter, drop and recall them; their rows.",
    create=tables.create,
    list=tables.list_tables,
    describe=tables.describe,
    drop=tables.drop,
    recall=tables.recall,
    alter=altering.alter,
    scan=scanning.scan,
    count=rows.count,
    get=rows.get,
    put=rows.put,
    delete=rows.delete,
    export=scanning.export,
)
tablet = _group(
    "tablet",
    "Tablets: the parts of a table, each replicated on its own.",
    list=tablets.list_tablets,
    show=tablets.show,
    flush=tablets.flush,
    step_down=tablets.step_down,
    add_replica=members.add_replica,
    remove_replica=members.remove_replica,
    move_replica=members.move_replica,
    unsafe_change_config=forcing.unsafe_change_config,
    copies=copies.copies,
    cancel_copy=copies.cancel_copy,
)
_group(
    "quarantine",
    "Quarantine: the data of deleted replicas.",
    to=tablet,
    list=quarantine.list_entries,
    restore_to=quarantine.restore_to,
    purge=quarantine.purge,
)
_group(
    "master",
    "Masters: which one is active, and making another one active.",
    list=masters.list_masters,
    failover=masters.failover,
)
_group(
    "journal",
    "The journal that keeps the masters' catalog.",
    status=journals.status,
    rejoin=journals.rejoin,
)
_group(
    "coord",
    "Coordination: the nodes and sessions with which processes agree.",
    ls=coord.ls,
    get=coord.get,
    set=coord.put,
    rm=coord.rm,
    sessions=coord.sessions,
)
_group(
    "chaos",
    "Chaos: whole deployments under faults, in simulation and on real Ray.",
    scenarios=chaos.scenarios,
    simulate=chaos.simulate,
    replay=replaying.replay,
    planted=chaos.planted,
    run=chaos.run_on_ray,
)
