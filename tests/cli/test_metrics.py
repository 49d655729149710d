"""`ebla metrics`: the figures of every role, without Prometheus."""

from __future__ import annotations

import json

from ebla import figure_docs
from tests.cli.stage import Cli
from tests.cli.test_masters import a_table, one_node_down


def test_every_role_reports_its_figures(several: Cli) -> None:
    roles = {each["role"]: each for each in several("metrics --json", prepare=a_table).json["roles"]}
    assert list(roles) == [
        *("master/0", "master/1"),
        *("journal/0", "journal/1", "journal/2"),
        *("tablet-server/a", "tablet-server/b", "tablet-server/c"),
    ]
    figures = [figure for role in roles.values() for figure in role["figures"]]
    assert {figure["name"] for figure in figures} == {each.name for each in figure_docs.definitions()}
    active = [figure["value"] for figure in figures if figure["name"] == "master_active"]
    assert sorted(active) == [0, 1]
    rows = [
        figure
        for figure in figures
        if figure["name"] == "tablet_replicas" and figure["tags"]["state"] == "leader"
    ]
    assert sum(figure["value"] for figure in rows) == 2


def test_metrics_of_one_kind_of_role_or_of_one_role(several: Cli) -> None:
    document = several("metrics journal --json").json
    assert [each["role"] for each in document["roles"]] == ["journal/0", "journal/1", "journal/2"]
    shown = several("metrics journal/1", prepare=a_table).lines
    assert shown[0] == "journal/1" and shown[1].split() == ["FIGURE", "OF", "VALUE", "UNIT"]
    promised = next(line for line in shown if "journal_promised_epoch" in line)
    assert promised.split() == ["journal_promised_epoch", "catalog", "1"]
    assert any(line.split()[0] == "journal_sync_p99_ms" and line.endswith("ms") for line in shown[2:])


def test_a_role_without_an_answer_is_shown_with_the_reason(several: Cli) -> None:
    document = several("metrics journal --json", prepare=one_node_down).json
    answered = {each["role"]: each["error"] is None for each in document["roles"]}
    assert answered == {"journal/0": True, "journal/1": False, "journal/2": True}
    silent = document["roles"][1]
    assert [(figure["name"], figure["value"]) for figure in silent["figures"]] == [("role_running", 0)]
    assert "  no answer: " in several("metrics journal/1", prepare=one_node_down).out


def test_an_unknown_role_is_refused_with_the_known_ones(ebla: Cli) -> None:
    outcome = ebla("metrics ledger")
    assert outcome.status != 0 and "there is no role 'ledger'" in outcome.err
    assert "tablet-server/host-a" in outcome.err


def test_the_dashboard_is_printed_without_a_deployment(ebla: Cli) -> None:
    outcome = ebla("metrics --dashboard")
    assert outcome.status == 0 and outcome.out == figure_docs.dashboard()
    assert json.loads(outcome.out)["title"] == "ebla"
