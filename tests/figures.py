"""Figures of a role in forms for tests."""

from __future__ import annotations

from collections.abc import Iterable

from ebla.actors.figures import Definition, Figure, Sheet
from ebla.actors.world import Role


def figures_of(role: Role) -> dict[str, float]:
    """The current figures of a role, by `name` or `name/tag/...`."""
    return by_series(role.measure())


def by_series(figures: Iterable[Figure]) -> dict[str, float]:
    return {"/".join((figure.name, *figure.tags.values())): figure.value for figure in figures}


def listed(sheets: Iterable[Sheet]) -> list[Definition]:
    return [definition for sheet in sheets for definition in sheet.definitions]


def kinds(figures: Iterable[Figure]) -> list[Definition]:
    """The distinct definitions of figures."""
    found = [Definition(f.name, f.kind, f.unit, f.help, tuple(f.tags)) for f in figures]
    return list(dict.fromkeys(found))
