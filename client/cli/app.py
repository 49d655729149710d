"""`ebla` and its commands, in the order in which an operator meets them.

The modules of a command are imported when the command runs, or when its help is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ebla.cli.frame import completion
from ebla.cli.frame.commands import Address, Json, Name, Quiet, RootGroup, Verbose, alone, command, group
from ebla.cli.frame.ui import Common


def _add(to: typer.Typer, **commands: Callable[..., Any]) -> None:
    for name, function in commands.items():
        command(to, name.replace("_", "-"), function)


def _group(to: typer.Typer, name: str, help: str, **commands: Callable[..., Any]) -> typer.Typer:
    made = group(help)
    to.add_typer(made, name=name)
    _add(made, **commands)
    return made


def _deployment(app: typer.Typer) -> None:
    from ebla.cli.nodes import (
        check,
        decommissioning,
        deployment,
        draining,
        forgetting,
        level,
        metrics,
        nodes,
    )

    _add(
        app,
        up=deployment.up,
        down=deployment.down,
        status=deployment.status,
        check=check.check,
        level=level.level,
        metrics=metrics.metrics,
    )
    hosts = group(
        "Nodes: the tablet servers and their hosts; maintenance, draining, decommissioning, suspending, allowing and forgetting.",
        alone=True,
    )
    app.add_typer(hosts, name="nodes")
    alone(hosts, nodes.nodes)
    _add(
        hosts,
        drain=draining.drain,
        decommission=decommissioning.decommission,
        maintain=draining.maintain,
        suspend=draining.suspend,
        allow_only=draining.allow_only,
        forget=forgetting.forget,
    )


def _data(app: typer.Typer) -> None:
    from ebla.cli.data import feeding, verifying

    _add(app, feed=feeding.feed, verify=verifying.verify, demo=verifying.demo)


def _tables(app: typer.Typer) -> None:
    from ebla.cli.tables import altering, rows, scanning, tables

    _group(
        app,
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


def _tablets(app: typer.Typer) -> None:
    from ebla.cli.tablets import copies, diagnosing, forcing, members, quarantine, tablets

    tablet = _group(
        app,
        "tablet",
        "Tablets: the parts of a table, each replicated on its own.",
        list=tablets.list_tablets,
        show=tablets.show,
        diagnose=diagnosing.diagnose,
        flush=tablets.flush,
        compact=tablets.compact,
        step_down=tablets.step_down,
        add_replica=members.add_replica,
        remove_replica=members.remove_replica,
        move_replica=members.move_replica,
        unsafe_change_config=forcing.unsafe_change_config,
        copies=copies.copies,
        cancel_copy=copies.cancel_copy,
    )
    _group(
        tablet,
        "quarantine",
        "Quarantine: the data of deleted replicas.",
        list=quarantine.list_entries,
        restore_to=quarantine.restore_to,
        purge=quarantine.purge,
    )


def _masters(app: typer.Typer) -> None:
    from ebla.cli.masters import coord, journals, masters

    _group(
        app,
        "master",
        "Masters: which one is active, and making another one active.",
        list=masters.list_masters,
        failover=masters.failover,
    )
    _group(
        app,
        "journal",
        "The journal that keeps the masters' catalog.",
        status=journals.status,
        rejoin=journals.rejoin,
    )
    _group(
        app,
        "coord",
        "Coordination: the nodes and sessions with which processes agree.",
        ls=coord.ls,
        get=coord.get,
        set=coord.put,
        rm=coord.rm,
        sessions=coord.sessions,
    )


def _logs(app: typer.Typer) -> None:
    from ebla.cli.logs import autorecovery, ledgers, logs, records

    _group(
        app,
        "log",
        "Logs: append-only sequences of records, with one writer at a time and any number of readers.",
        create=logs.create,
        list=logs.list_logs,
        describe=logs.describe,
        append=records.append,
        cat=records.cat,
        tail=records.tail,
        trim=logs.trim,
        delete=logs.delete,
    )
    _group(
        app,
        "ledger",
        "Ledgers: the parts of a log, each on several ledger stores.",
        list=ledgers.list_ledgers,
        show=ledgers.show,
        check=ledgers.check,
        give_up=ledgers.give_up,
    )
    _group(
        app,
        "autorecovery",
        "Autorecovery: the repair of ledgers after the loss of a store.",
        status=autorecovery.status,
        enable=autorecovery.enable,
        disable=autorecovery.disable,
        trigger=autorecovery.trigger,
        delay=autorecovery.delay,
    )


def _chaos(app: typer.Typer) -> None:
    from ebla.cli.chaos import chaos, replaying

    _group(
        app,
        "chaos",
        "Chaos: whole deployments under faults, in simulation and on real Ray.",
        scenarios=chaos.scenarios,
        simulate=chaos.simulate,
        replay=replaying.replay,
        planted=chaos.planted,
        run=chaos.run_on_ray,
    )


PARTS: dict[Callable[[typer.Typer], None], tuple[str, ...]] = {
    _deployment: ("up", "down", "status", "check", "level", "metrics", "nodes"),
    _data: ("feed", "verify", "demo"),
    _tables: ("table",),
    _tablets: ("tablet",),
    _logs: ("log", "ledger", "autorecovery"),
    _masters: ("master", "journal", "coord"),
    _chaos: ("chaos",),
}


class Root(RootGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)
        for param in params:
            param.help = completion.HELP.get(param.opts[0], param.help)
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        completion.for_shell(ctx, args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in PARTS.values() for name in names]

    def get_command(self, ctx: Any, name: str) -> Any:
        """The command; the part of the command line that has it is made now, or every part for the hint at an unknown name."""
        unknown = name not in self.list_commands(ctx)
        for part, names in PARTS.items():
            if unknown or name in names:
                self.commands.update(_commands(part))
        return super().get_command(ctx, name)


@cache
def _commands(part: Callable[[typer.Typer], None]) -> Mapping[str, Any]:
    made = typer.Typer(callback=lambda: None)
    part(made)
    loaded = typer.main.get_command(made)
    assert isinstance(loaded, TyperGroup)
    return loaded.commands


app = group(
    "Durable, replicated tables and logs inside a Ray cluster.\n\nStart with `ebla up --local 4` on this machine, or `ebla up` in a running "
    "Ray cluster; then `ebla status`.",
    completion=True,
)
app.info.cls = Root


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
    quiet: Quiet = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    ctx.obj = Common(address, name, json, verbose, quiet)
