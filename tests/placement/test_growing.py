"""`ebla up` while the journal grows: which roles start, where new nodes go, and what a failed growth leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from ebla.actors.errors import Unavailable
from ebla.actors.journal.messages import FormatState, JournalId
from ebla.actors.journal.options import JournalOptions
from ebla.actors.ray_shell import Pong
from ebla.placement import launch
from ebla.placement.config import configure
from ebla.placement.deploy import memory
from ebla.placement.deploy.fleet import Fleet
from ebla.placement.deploy.roles import RoleSpec, plan_roles
from ebla.placement.deploy.slots import Host, Survey
from ebla.placement.journal import catalog, journals
from ebla.placement.state import Deployment, JournalMemory

SERVERS = {f"tablet-server/{slot}" for slot in "abcd"}
NEW = {"journal/1", "journal/2"}


def interrupted(masters: int = 1) -> Deployment:
    """A deployment whose journal was to grow from slot a to b and c."""
    return Deployment(
        uuid="u",
        revision=3,
        config=configure({"name": "t", "masters": masters, "journals": 3}),
        masters=tuple("ad"[:masters]),
        journal=JournalMemory(id="i", slots=("a",), in_master=True, formatted=True, joining=("b", "c")),
        groups={"g": tuple("abcd")},
    )


def alive(slots: str) -> Survey:
    return Survey(tuple(Host(slot, f"node-{slot}", "10.0.0.1") for slot in slots))


@dataclass
class Ups(Fleet):
    """Runs of `grown` over a fleet that launches nothing. `nodes`: the nodes that master/0 knows."""

    nodes: tuple[str, ...] = ("master/0",)
    error: Exception | None = None
    started: dict[str, str] = field(default_factory=dict)
    kept: list[Deployment] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    grown: list[tuple[str, ...]] = field(default_factory=list)

    def bring(self, specs: Sequence[RoleSpec], deadline_s: float) -> dict[str, Pong | str]:
        self.started.update({spec.address: spec.slot for spec in specs})
        return {}

    def up(self, state: Deployment, hosts: str) -> tuple[Deployment, str]:
        self.started.clear()
        return catalog.grown(self, plan_roles, state, alive(hosts), 0.0)


@pytest.fixture
def ups(monkeypatch: pytest.MonkeyPatch) -> Ups:
    made = Ups()

    async def grow(config: object, nodes: tuple[str, ...], deadline_s: float) -> None:
        made.grown.append(nodes)
        if made.error is not None:
            raise made.error

    def end(namespace: str, address: str) -> bool:
        made.ended.append(address)
        return True

    monkeypatch.setattr(catalog, "_grow", grow)
    monkeypatch.setattr(catalog, "end_actor", end)
    monkeypatch.setattr(journals, "nodes_of", lambda namespace, journal: made.nodes)
    monkeypatch.setattr(memory, "keep", lambda state, before, hosts: made.kept.append(state))
    return made


def test_a_growth_that_succeeds_is_remembered(ups: Ups) -> None:
    state, ungrown = ups.up(interrupted(2), "abcd")
    assert (ungrown, ups.grown) == ("", [("master/0", "journal/1", "journal/2")])
    assert state.journal is not None and (state.journal.slots, state.journal.joining) == (("a", "b", "c"), ())
    assert ups.kept == [state] and ups.ended == []
    assert set(ups.started) == {"master/0", *SERVERS, *NEW}, "master/1 starts after the growth"
    assert ups.up(state, "abcd") == (state, "") and ups.started == {}


def test_all_roles_that_do_not_need_the_growth_start_if_it_fails(ups: Ups) -> None:
    ups.error = Unavailable("journal/2 does not join the journal within 5 s")
    before = interrupted(2)
    state, ungrown = ups.up(before, "abcd")
    assert state == before and set(ups.started) == {"master/0", *SERVERS, *NEW}
    assert "journal/2 does not join" in ungrown and "`ebla up` continues it" in ungrown


def test_a_new_node_whose_host_is_away_gets_another_host(ups: Ups) -> None:
    state, ungrown = ups.up(interrupted(), "abd")
    assert ungrown == "" and state.journal is not None and state.journal.slots == ("a", "b", "d")
    assert [each.journal and each.journal.joining for each in ups.kept] == [("b", "d"), ()]
    assert ups.ended == ["journal/2"], "its actor waits for the old host"
    assert (ups.started["journal/1"], ups.started["journal/2"]) == ("b", "d")


def test_hosts_without_a_master_take_new_nodes_first(ups: Ups) -> None:
    before = interrupted(2).revised(groups={"g": tuple("abcde")})
    state, _ = ups.up(before, "abde")
    assert state.journal is not None and state.journal.slots == ("a", "b", "e")


def test_a_new_node_keeps_its_slot_after_the_commit_point(ups: Ups) -> None:
    ups.nodes = ("master/0", "journal/1", "journal/2")
    state, ungrown = ups.up(interrupted(), "abd")
    assert ungrown == "" and state.journal is not None and state.journal.slots == ("a", "b", "c")
    assert ups.ended == []


def test_the_first_node_of_the_journal_is_asked_whether_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    single = JournalOptions(journal=JournalId("catalog", "i"), nodes=("master/0",))
    grown = FormatState("i", ("master/0", "journal/1", "journal/2"), used=True)
    answers: dict[str, FormatState | Unavailable] = {"master/0": grown}
    monkeypatch.setattr(journals, "_operate", lambda namespace, work: answers)
    assert journals.nodes_of("n", single) == grown.nodes
    answers["master/0"] = Unavailable("it is cut off")
    with pytest.raises(Unavailable, match="cut off"):
        journals.nodes_of("n", single)


def test_without_a_free_host_the_journal_does_not_grow_and_the_remedy_is_named(ups: Ups) -> None:
    before = interrupted()
    state, ungrown = ups.up(before, "ab")
    assert state == before and ups.grown == [] and ups.ended == []
    assert "slot c has no alive node" in ungrown and "start a node with this label, or any other" in ungrown
    assert {"master/0", "tablet-server/a", "tablet-server/b"} <= set(ups.started)


def test_a_deployment_whose_journal_has_yet_to_grow_is_not_ready() -> None:
    state, available = interrupted(2), alive("abd")
    running = Pong(state="running", address="", slot="", node_id="", pid=1, restarted=False, started_us=0)
    answers = {spec.address: running for spec in catalog.roles(plan_roles, state) if spec.slot != "c"}
    del answers["master/1"]
    found = {
        spec.address: launch._status(spec, answers.get(spec.address), available, state, [])
        for spec in catalog.roles(plan_roles, state)
    }
    assert found["master/0"].error is found["tablet-server/b"].error is None
    assert (found["journal/1"].state, found["journal/2"].state) == ("running", "away")
    assert found["journal/1"].error == "it counts when the journal has grown"
    assert found["master/1"].error == "it starts when the journal has grown"
    report = launch.UpReport("t", "n", "/d", (), (), (found["master/0"], found["journal/1"]), {}, ())
    assert not report.ready
