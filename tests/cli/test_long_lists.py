"""Lists of thousands of tablets: what a person sees of them, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.cli.frame import render
from ebla.cli.frame import ui as frame
from ebla.health.tablets import judge
from ebla.health.verdicts import Survey
from tests.cli.repair_stage import RepairStage, Toys
from tests.cli.stage import Cli, terminal
from tests.cli.surveys import report, seen
from tests.master.builders import configuration, replica

SHORT, LONG = 3, render.PLAIN_FROM + 1


@pytest.mark.parametrize("command", ["tablet list", "table describe flights -d"])
def test_a_terminal_shows_the_first_rows_and_how_to_see_the_rest(
    loaded: Cli, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(frame, "ROWS_SHOWN", 1)
    printed = terminal(monkeypatch, 160)
    assert loaded(command).status == 0
    assert "and 1 more tablet: " in printed.getvalue() and "-v shows all" in printed.getvalue()
    assert "more tablet" not in _printed(loaded, monkeypatch, f"{command} -v")


async def _failed_replicas(stage: RepairStage) -> None:
    held = configuration("a", "b", "c")
    stage.of("c").replicas[:] = [
        replica(f"{number}aaa1111", held, state="failed", error="its disk is damaged") for number in range(4)
    ]


def test_a_terminal_shows_the_first_failed_replicas_of_a_server(
    toys: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "ROWS_SHOWN", 1)
    toys.prepare = _failed_replicas
    text = _printed(toys, monkeypatch, "nodes -d")
    assert text.count("its disk is damaged") == 1
    assert "and 3 more failed replicas: --json has all, -v shows all" in text
    assert _printed(toys, monkeypatch, "nodes -d -v").count("its disk is damaged") == 4


def test_nothing_is_cut_in_a_pipe(loaded: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "ROWS_SHOWN", 1)
    found = loaded("tablet list")
    assert len(found.lines) == 3 and "more tablet" not in found.out


def test_a_list_of_few_tables_has_no_further_line(loaded: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "more table" not in _printed(loaded, monkeypatch, "table list")


def test_a_long_list_has_the_columns_of_a_short_one() -> None:
    rows = [("name", "", number, None) for number in range(LONG)]
    text = render.listing(("NAME", "EMPTY", "COUNT>", "GONE"), rows)
    assert isinstance(text, str)
    assert text.splitlines()[:2] == ["NAME  COUNT  GONE", "name      0  -"]
    assert len(text.splitlines()) == LONG + 1
    assert not isinstance(render.listing(("NAME",), rows[:SHORT]), str)


def test_the_verdict_reads_the_replicas_of_a_server_as_often_for_many_tablets_as_for_few() -> None:
    assert _visits(40) == _visits(2)


class _Counted(tuple[Any, ...]):
    visits = 0

    def __iter__(self) -> Iterator[Any]:
        type(self).visits += 1
        return super().__iter__()

    def __reversed__(self) -> Iterator[Any]:
        type(self).visits += 1
        return iter(self[::-1])


def _visits(tablets: int) -> int:
    """How often the verdict on so many tablets goes through the replicas of a server."""
    _Counted.visits = 0
    judged = judge(_wide(tablets))
    assert [each.status for each in judged.tablets] == ["HEALTHY"] * tablets
    return _Counted.visits


def _wide(tablets: int) -> Survey:
    survey = seen(*map(report, "abc"))
    names = [f"t{number}" for number in range(tablets)]
    (table,) = survey.tables
    (location,) = table.tablets
    states = {}
    for address, state in survey.states.items():
        assert isinstance(state, m.ServerState)
        held = _Counted(replace(state.replicas[0], tablet=name) for name in names)
        states[address] = replace(state, replicas=held)
    places = tuple(replace(location, tablet=name, bucket=number) for number, name in enumerate(names))
    return replace(survey, tables=(replace(table, tablets=places),), states=states)


def _printed(cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str) -> str:
    printed = terminal(monkeypatch, 160)
    assert cli(command).status == 0
    return printed.getvalue()
