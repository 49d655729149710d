"""`ebla` and its commands, in the order in which an operator meets them."""

from __future__ import annotations

from typing import Annotated

import typer

from ebla.cli.chaos import chaos
from ebla.cli.data import feeding
from ebla.cli.frame.commands import Address, Json, Name, RootGroup, Verbose, group
from ebla.cli.frame.ui import Common, Ui
from ebla.cli.masters import coord, journals, masters
from ebla.cli.nodes import check, deployment, draining, forgetting, maintaining, metrics, nodes
from ebla.cli.tables import altering, scanning, tables
from ebla.cli.tablets import copies, forcing, members, quarantine, tablets

app = group("Durable, replicated tables inside a Ray cluster.")
app.info.cls = RootGroup

table = group("Tables: create, list, describe, scan, alter, drop and recall them.")
tablet = group("Tablets: the parts of a table, each replicated on its own.")
kept = group("Quarantine: the data of deleted replicas.")
hosts = group("Nodes: the tablet servers and their hosts; maintenance, draining and forgetting.", alone=True)
master = group("Masters: which one is active, and making another one active.")
journal = group("The journal that keeps the masters' catalog.")
coordination = group("Coordination: the nodes and sessions with which processes agree.")
disasters = group("Chaos: whole deployments under faults, in simulation and on real Ray.")


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


deployment.register(app)
check.register(app)
metrics.register(app)
feeding.register(app)
app.add_typer(hosts, name="nodes")
app.add_typer(table, name="table")
app.add_typer(tablet, name="tablet")
app.add_typer(master, name="master")
app.add_typer(journal, name="journal")
app.add_typer(coordination, name="coord")
app.add_typer(disasters, name="chaos")
tables.register(table)
altering.register(table)
scanning.register(table)
nodes.register(hosts)
draining.register(hosts)
maintaining.register(hosts)
forgetting.register(hosts)
tablets.register(tablet)
members.register(tablet)
forcing.register(tablet)
copies.register(tablet)
tablet.add_typer(kept, name="quarantine")
quarantine.register(kept)
masters.register(master)
journals.register(journal)
coord.register(coordination)
chaos.register(disasters)

__all__ = ["Ui", "app"]
