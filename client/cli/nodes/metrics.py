"""`ebla metrics`: the present figures of every role. Ray's metrics show the same figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ebla.cli.frame.cluster import Cluster, within
from ebla.cli.frame.commands import command
from ebla.cli.frame.problems import Refused
from ebla.cli.frame.render import brief, listing, size
from ebla.cli.frame.ui import Ui

if TYPE_CHECKING:
    from ebla.actors.figures import Figure

ASK_S = 5.0


class RoleFigures(msgspec.Struct, frozen=True):
    """`error`: why the role gave no answer."""

    role: str
    figures: tuple[Figure, ...]
    error: str | None = None


def metrics(
    ui: Ui,
    role: Annotated[
        str | None,
        typer.Argument(metavar="ROLE", help="A role, such as journal/1, or a kind of role: journal."),
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print a dashboard for Grafana instead; needs no cluster.")
    ] = False,
) -> None:
    """Show the figures of every role, as Ray exports them to Prometheus."""
    if dashboard:
        from ebla import figure_docs

        typer.echo(figure_docs.dashboard(), nl=False)
        return
    told = within(ui, lambda cluster: look(cluster, role))
    ui.show({"roles": [msgspec.to_builtins(each) for each in told]}, *_parts(told))


async def look(cluster: Cluster, wanted: str | None) -> list[RoleFigures]:
    from ebla.health.survey import gathered

    seen = await cluster.survey(tables=())
    roles = [*seen.masters, *seen.journals, *sorted(seen.states)]
    chosen = [role for role in roles if wanted is None or role == wanted or role.startswith(f"{wanted}/")]
    if not chosen:
        raise Refused(f"there is no role {wanted!r}", hint=f"the roles are {', '.join(roles)}")
    return await gathered([_ask(cluster, role) for role in chosen])


async def _ask(cluster: Cluster, role: str) -> RoleFigures:
    from ebla.actors.figures import Figures, FiguresRequest
    from ebla.actors.ray_shell import SHELL
    from ebla.health.survey import ask
    from ebla.health.verdicts import Unanswered

    answer = await ask(cluster.network, role, "figures", FiguresRequest(), Figures, ASK_S)
    if isinstance(answer, Unanswered):
        return RoleFigures(role, tuple(SHELL.read(False)), answer.message)
    return RoleFigures(role, (*SHELL.read(True), *answer.figures))


def _parts(told: list[RoleFigures]) -> list[Any]:
    parts: list[Any] = []
    for each in told:
        parts += ["", each.role] if parts else [each.role]
        if each.error is not None:
            parts.append(f"  no answer: {brief(each.error)}")
            continue
        rows = [
            (f"  {figure.name}", " ".join(figure.tags.values()), _value(figure), _unit(figure))
            for figure in each.figures
        ]
        parts.append(listing(("  FIGURE", "OF", "VALUE>", "UNIT"), rows))
    return parts


def _value(figure: Figure) -> str:
    if figure.unit == "bytes":
        return size(int(figure.value))
    return f"{figure.value:,.1f}" if figure.unit == "ms" else f"{figure.value:,.0f}"


def _unit(figure: Figure) -> str:
    return "" if figure.unit in ("bytes", "0/1") else figure.unit


def register(app: typer.Typer) -> None:
    command(app, "metrics")(metrics)
