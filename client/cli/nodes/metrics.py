"""`ebla metrics`: the present figures of every role. Ray's metrics show the same figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ebla.cli.frame.connection import within
from ebla.cli.frame.options import argument, option
from ebla.cli.frame.problems import FAILED
from ebla.cli.frame.render import listing
from ebla.cli.frame.ui import Ui
from ebla.operate.naming import Refused
from ebla.wording import brief, size

if TYPE_CHECKING:
    from ebla.actors.figures import Figure
    from ebla.operate.cluster import Cluster

ASK_S = 5.0


class RoleFigures(msgspec.Struct, frozen=True):
    """`error`: why the role gave no answer."""

    role: str
    figures: tuple[Figure, ...]
    error: str | None = None


def metrics(
    ui: Ui,
    role: Annotated[
        str | None, argument("ROLE", "A role, such as journal/1, or a kind of role: journal.")
    ] = None,
    dashboard: Annotated[
        bool, option("--dashboard", "Print a dashboard for Grafana instead; needs no cluster.")
    ] = False,
) -> None:
    """Show the figures of every role, as Ray exports them to Prometheus. Exit status 1: a role gave no answer."""
    if dashboard:
        from ebla import figure_docs

        typer.echo(figure_docs.dashboard(), nl=False)
        return
    roles = within(ui, lambda cluster: _read(cluster, role))
    parts: list[Any] = []
    for each in roles:
        parts += ["", each.role] if parts else [each.role]
        if each.error is not None:
            parts.append(f"  no answer: {brief(each.error)}")
            continue
        rows = [
            (f"  {figure.name}", " ".join(figure.tags.values()), _value(figure), _unit(figure))
            for figure in each.figures
        ]
        parts.append(listing(("  FIGURE", "OF", "VALUE>", "UNIT"), rows))
    ui.show({"roles": roles}, *parts)
    if any(each.error is not None for each in roles):
        raise typer.Exit(FAILED)


async def _read(cluster: Cluster, wanted: str | None) -> list[RoleFigures]:
    from ebla.actors.figures import Figures, FiguresRequest
    from ebla.actors.ray_shell import SHELL
    from ebla.health.survey import gathered
    from ebla.health.verdicts import Unanswered

    seen = await cluster.survey(tables=())
    known = [*seen.masters, *seen.journals, *sorted(seen.states), *seen.stores, *cluster.repairers]
    roles = list(dict.fromkeys(known))
    chosen = [role for role in roles if wanted is None or role == wanted or role.startswith(f"{wanted}/")]
    if not chosen:
        raise Refused(f"there is no role {wanted!r}", hint=f"the roles are {', '.join(roles)}")

    async def one(role: str) -> RoleFigures:
        answer = await cluster.ask(role, "figures", FiguresRequest(), Figures, ASK_S)
        if isinstance(answer, Unanswered):
            return RoleFigures(role, tuple(SHELL.read(False)), answer.message)
        return RoleFigures(role, (*SHELL.read(True), *answer.figures))

    return await gathered([one(role) for role in chosen])


def _value(figure: Figure) -> str:
    if figure.unit == "bytes":
        return size(int(figure.value))
    return f"{figure.value:,.1f}" if figure.unit == "ms" else f"{figure.value:,.0f}"


def _unit(figure: Figure) -> str:
    return "" if figure.unit in ("bytes", "0/1") else figure.unit
