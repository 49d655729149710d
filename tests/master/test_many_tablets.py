"""What the master does once for each tablet, and not once for each pair of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from ebla.actors.master.catalog import edits as e
from ebla.actors.master.errands import errands as module
from ebla.actors.master.errands.errands import Errand
from tests.master.builders import Story, configuration, replica, report
from tests.master.test_errands import OPTIONS, drop, errands, kinds, live
from tests.master.test_reports import ABC, Heard

SERVERS = ("a", "b", "c")


class _Counted(dict[str, Any]):
    """Counts how often all of it is read."""

    reads = 0

    def items(self) -> Any:
        self.reads += 1
        return super().items()

    def values(self) -> Any:
        self.reads += 1
        return super().values()

    def __iter__(self) -> Iterator[str]:
        self.reads += 1
        return super().__iter__()


def _looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times of the looks at all tablets from now on; two tablets are many."""
    found: list[float] = []
    wanted = module.Errands._wanted

    def noted(self: Any, catalog: Any, servers: Any, now: float) -> Iterator[Errand]:
        found.append(now)
        return wanted(self, catalog, servers, now)

    monkeypatch.setattr(module, "LOOKED_MAX", 1)
    monkeypatch.setattr(module.Errands, "_wanted", noted)
    return found


def test_the_ends_of_errands_lead_to_no_further_look_at_many_tablets(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, story, todo = _looks(monkeypatch), Story(), errands()
    names = [story.creating(*SERVERS, name=f"t{number}") for number in range(6)]
    servers, done = live(*SERVERS), []
    under_way = todo.begin(story.catalog, servers, 10.0)
    while under_way:
        assert len(under_way) <= OPTIONS.rpcs_max
        errand = under_way.pop(0)
        todo.succeeded(errand, 10.0)
        done.append((errand.tablet, errand.uuid))
        under_way += todo.begin(story.catalog, servers, 10.0)
    assert sorted(done) == sorted((tablet, uuid) for tablet in names for uuid in SERVERS)
    assert looks == [10.0]


def test_many_tablets_are_looked_at_again_in_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, story, todo = _looks(monkeypatch), Story(), errands()
    for number in range(2):
        story.creating(*SERVERS, name=f"t{number}")
    for now in (10.0, 10.1, 10.0 + OPTIONS.bg_s):
        todo.begin(story.catalog, live(*SERVERS), now)
    assert looks == [10.0, 10.0 + OPTIONS.bg_s]


def test_an_errand_that_waited_is_not_begun_if_it_is_no_longer_due(monkeypatch: pytest.MonkeyPatch) -> None:
    _looks(monkeypatch)
    story, todo = Story(), errands()
    for number in range(3):
        story.creating("a", name=f"t{number}")
    begun = todo.begin(story.catalog, live("a"), 10.0)
    assert kinds(begun) == [("create", "a")] * OPTIONS.rpcs_per_server_max
    drop(story, "t2")
    todo.succeeded(begun[0], 10.0)
    assert todo.begin(story.catalog, live("a"), 10.0) == []


def test_the_first_report_of_a_server_reads_no_tablet_of_other_servers() -> None:
    heard = Heard()
    heard.says("a", ABC, "a", role="leader")
    views = heard.views.tablets = _Counted(heard.views.tablets)
    heard.take("b", report(replica(heard.tablet, ABC, "a"), full=True))
    assert views.reads == 0
    heard.take("b", report(sequence=1, full=True))
    assert views.reads == 1, "a server that has reported before may lack replicas now"
    assert heard.views.of(heard.tablet).states == {"a": "running"}


def test_the_garbage_collector_visits_no_record_of_a_tablet() -> None:
    story = Story()
    record = story.catalog.tablets[story.running(*SERVERS)]
    assert record.configuration is not None
    assert not any(map(gc.is_tracked, (record, record.configuration, *record.configuration.peers)))


def test_no_question_about_members_reads_all_tablets() -> None:
    story = Story()
    first, second = story.running("a", "b", "c"), story.running("b", "c", "d", name="others")
    members, tablets = story.catalog.members, _Counted(story.catalog.tablets)
    story.catalog.tablets = tablets
    assert list(members.at("tablet-server/b")) == [first, second]
    assert list(members.of("d")) == [second]
    assert members.totals() == {"a": 1, "b": 2, "c": 2, "d": 1}
    assert list(members.addresses()) == [f"tablet-server/{uuid}" for uuid in "abcd"]
    story.apply(e.ConfigurationChanged(first, configuration("b", "c", "d", index=5)))
    assert list(members.of("a")) == [] and members.totals()["d"] == 2
    drop(story)
    assert members.totals() == {"b": 1, "c": 1, "d": 1}
    assert tablets.reads == 0
