"""The confirmation of a loss: an operator types the name of the thing that is lost."""

from __future__ import annotations

import shlex
from typing import Any

from ebla.cli.frame.ui import Ui
from ebla.operate.naming import Refused


def confirm_loss(
    ui: Ui, thing: str, name: str, yes: str | None, shown: list[Any], called: str = "whole id"
) -> None:
    """Show what would be lost, and let the operator type the name. `thing`: a tablet or a host; `called`: what its name is."""
    for part in shown if not ui.json else ():
        ui.err.print(part, highlight=False, markup=False)
    if yes is not None:
        if yes != name:
            raise Refused(
                f"--yes-i-lose-data names {yes!r}, and this is {thing} {name}; nothing was changed", hint=None
            )
        return
    if ui.json or not ui.interactive:
        raise Refused(
            "acknowledged writes may be lost, and there is no terminal for a confirmation",
            hint=f"add --yes-i-lose-data {shlex.quote(name)}",
        )
    if ui.ask(f"Type the {thing}'s {called} to continue: ") != name:
        raise Refused(f"this is not the {thing}'s {called.removeprefix('whole ')}; nothing was changed")
