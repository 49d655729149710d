"""The catalog as a state machine: random histories against a simple model, replay, and named edge cases."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ebla.actors.errors import RequestReused, StaleRequest
from ebla.actors.master.catalog import catalog, records
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.invariants import require_sound
from ebla.actors.master.catalog.members import Members
from ebla.actors.master.catalog.records import decode_image, encode_image
from ebla.actors.master.cluster.levels import FREEZED
from ebla.actors.master.tables import requests
from ebla.actors.messages import DropTableRequest
from ebla.actors.replication.configuration import (
    Configuration,
    Peer,
)
from tests.master.builders import Story, configuration, create_request
from tests.master.stage import content


def test_a_dropped_name_is_free_at_once_and_reusable_while_the_old_tablets_still_end():
    story = Story()
    old = story.running("a", "b", "c")
    table = story.catalog.named("flights").table
    story.apply(e.TableDropped("drop 1", 0, table, 5))
    assert story.catalog.named("flights") is None
    (new,) = story.create("flights", request_id="create again")
    assert story.catalog.tablets[old].state == records.DELETED
    assert story.catalog.tablets[new].state == records.PREPARING
    require_sound(story.catalog)


def test_a_replaced_tablet_leaves_its_partition_to_its_successor():
    story = Story()
    tablets = story.create(buckets=3)
    story.apply(e.TabletAssigned(tablets[1], configuration("a", "b", "c")))
    story.apply(e.TabletReplaced(tablets[1], "new", 7))
    assert story.catalog.named("flights").tablets == (tablets[0], "new", tablets[2])
    assert story.catalog.tablets["new"].bucket == 1
    assert [peer.uuid for peer in story.catalog.tablets[tablets[1]].holders()] == ["a", "b", "c"]
    require_sound(story.catalog)


def test_a_removed_table_is_forgotten_with_its_last_tablet():
    story = Story()
    tablets = story.create(buckets=2)
    table = story.catalog.named("flights").table
    story.apply(e.TabletAssigned(tablets[0], configuration("a")), e.TabletReplaced(tablets[0], "new", 7))
    story.apply(e.TableDropped("drop 1", 0, table, 9))
    story.apply(e.TabletsForgotten((tablets[0], tablets[1])))
    assert table in story.catalog.tables
    story.apply(e.TabletsForgotten(("new",)))
    assert table not in story.catalog.tables
    require_sound(story.catalog)


def test_tombstones_are_known_until_the_server_has_the_tablet_again_or_is_replaced():
    story = Story()
    tablet = story.running("a", "b", "c")
    story.apply(e.ConfigurationChanged(tablet, configuration("a", index=5)))
    for uuid in "bc":
        story.apply(e.FormerMembersGone(uuid, (tablet,), tombstone=True))
    record = story.catalog.tablets[tablet]
    assert (record.former, [peer.uuid for peer in record.tombstones]) == ((), ["b", "c"])
    assert [peer.uuid for peer in record.holders()] == ["a", "b", "c"], "a drop of the table deletes them too"
    story.apply(e.ConfigurationChanged(tablet, configuration("a", "b", index=6)))
    assert [peer.uuid for peer in story.catalog.tablets[tablet].tombstones] == ["c"]
    other = Peer("d", "tablet-server/c")  # replaces c, whose directory was lost
    story.apply(e.ConfigurationChanged(tablet, Configuration((Peer("a", ""), other), 7)))
    story.apply(e.ConfigurationChanged(tablet, configuration("a", index=8)))
    story.apply(e.FormerMembersGone("d", (tablet,), tombstone=True))
    assert [peer.uuid for peer in story.catalog.tablets[tablet].tombstones] == ["d"]
    require_sound(story.catalog)


@pytest.mark.parametrize(
    ("edit", "fields"),
    [
        (e.ServerMaintained("tablet-server/a", True), ["maintained"]),
        (e.ServerSuspended("tablet-server/a", True), ["suspended"]),
        (e.ServerAllowed("tablet-server/a", True), ["allowed"]),
        (e.LevelSet(FREEZED, 7), ["level", "level_us"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_notice_is_in_the_image_and_an_older_image_has_none(edit: e.Edit, fields: list[str]):
    story = Story()
    before = content(story.catalog)
    story.apply(edit)
    assert content(story.catalog) != before
    encoded = encode_image(story.catalog.image())
    older = {name: known for name, known in msgspec.msgpack.decode(encoded).items() if name not in fields}
    for data, image in ((encoded, content(story.catalog)), (msgspec.msgpack.encode(older), before)):
        catalog = Catalog()
        catalog.load(decode_image(data))
        assert content(catalog) == image
    with pytest.raises(AssertionError):
        story.apply(edit)


def test_a_forgotten_server_loses_its_notices():
    story = Story()
    story.apply(e.ServerSuspended("tablet-server/a", True))
    story.apply(e.ServerDraining("tablet-server/a", True), e.ServerMaintained("tablet-server/a", True))
    story.apply(e.ServerForgotten("tablet-server/a", ("u",)))
    assert not story.catalog.draining and not story.catalog.maintained and not story.catalog.suspended


def test_an_illegal_edit_raises():
    story = Story()
    tablet = story.running("a", "b", "c")
    for edit in (
        e.TabletAssigned(tablet, configuration("a")),
        e.TabletReplaced(tablet, "new", 1),
        e.TabletRunning(tablet),
        e.TabletsForgotten((tablet,)),
        e.ConfigurationChanged(tablet, configuration("a")),
        e.ReplicasSeen("z", (tablet,)),
        e.ServerMaintained("tablet-server/a", False),
    ):
        before = story.catalog.image()
        with pytest.raises(AssertionError):
            story.catalog.apply([edit])
        assert story.catalog.image() == before


def test_a_request_id_outlives_its_table_and_includes_the_body():
    story = Story()
    request = create_request("flights")
    story.apply(requests.created(request, story.random, 1))
    assert requests.earlier_table(story.catalog, request).name == "flights"
    with pytest.raises(RequestReused):
        requests.earlier_table(story.catalog, create_request("other", request_id=request.request_id))
    with pytest.raises(RequestReused):
        requests.earlier(story.catalog, DropTableRequest(request.request_id, "flights"))
    drop = DropTableRequest("drop 1", "flights")
    table = story.catalog.named("flights").table
    story.apply(e.TableDropped("drop 1", requests.digest(drop), table, 2))
    assert requests.earlier(story.catalog, drop)
    with pytest.raises(StaleRequest):
        requests.earlier_table(story.catalog, request)


def test_the_oldest_request_ids_are_forgotten_beyond_a_limit(monkeypatch):
    monkeypatch.setattr(catalog, "REQUESTS_MAX", 3)
    story = Story()
    for name in "abcde":
        story.create(name, request_id=name)
    assert list(story.catalog.requests) == ["c", "d", "e"]


NOTICES = [
    (e.ServerDraining, "draining"),
    (e.ServerMaintained, "maintained"),
    (e.ServerSuspended, "suspended"),
    (e.ServerAllowed, "allowed"),
]


def _recounted(catalog: Catalog) -> Members:
    """The members as a catalog counts them that knows nothing but the present records."""
    found = Members()
    for record in catalog.tablets.values():
        if record.state in records.LIVE:
            found.replace(None, record)
    return found


def _held(members: Members) -> tuple[object, ...]:
    return members.held, members.of_table, members.appointed, members.primaries


class CatalogMachine(RuleBasedStateMachine):
    """Random legal edits. The model has a dictionary of names and one of tablet states, and no indexes."""

    def __init__(self) -> None:
        super().__init__()
        self.story = Story()
        self.counter = 0
        self.names: dict[str, list[str]] = {}
        self.states: dict[str, str] = {}

    def fresh(self) -> str:
        self.counter += 1
        return f"x{self.counter}"

    def pick(self, data: st.DataObject, *states: str) -> str | None:
        options = [tablet for tablet, state in self.states.items() if state in states]
        return data.draw(st.sampled_from(options)) if options else None

    @rule(name=st.sampled_from("abcd"), buckets=st.integers(1, 3))
    def create(self, name: str, buckets: int) -> None:
        if name in self.names:
            return
        tablets = self.story.create(name, request_id=self.fresh(), buckets=buckets)
        self.names[name] = list(tablets)
        self.states.update(dict.fromkeys(tablets, records.PREPARING))

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.names)))
        table = self.story.catalog.named(name).table
        self.story.apply(e.TableDropped(self.fresh(), 0, table, self.counter))
        self.states.update(dict.fromkeys(self.names.pop(name), records.DELETED))

    @rule(data=st.data())
    def assign(self, data: st.DataObject) -> None:
        if tablet := self.pick(data, records.PREPARING):
            members = data.draw(st.lists(st.sampled_from("stuvwx"), min_size=1, max_size=3, unique=True))
            self.story.apply(e.TabletAssigned(tablet, configuration(*members)))
            self.states[tablet] = records.CREATING

    @rule(data=st.data())
    def see(self, data: st.DataObject) -> None:
        if tablet := self.pick(data, records.CREATING, records.RUNNING):
            for uuid in self.story.catalog.tablets[tablet].unseen[:1]:
                self.story.apply(e.ReplicasSeen(uuid, (tablet,)))

    @rule(data=st.data())
    def run_tablet(self, data: st.DataObject) -> None:
        if tablet := self.pick(data, records.CREATING):
            self.story.apply(e.TabletRunning(tablet))
            self.states[tablet] = records.RUNNING

    @rule(data=st.data())
    def reconfigure(self, data: st.DataObject) -> None:
        if tablet := self.pick(data, records.CREATING, records.RUNNING):
            members = data.draw(st.lists(st.sampled_from("stuvwx"), min_size=1, max_size=4, unique=True))
            index = self.story.catalog.tablets[tablet].configuration.index + 1
            before = {peer.uuid for peer in self.story.catalog.tablets[tablet].holders()}
            self.story.apply(e.ConfigurationChanged(tablet, configuration(*members, index=index)))
            after = [peer.uuid for peer in self.story.catalog.tablets[tablet].holders()]
            assert set(after) == before | set(members) and len(after) == len(set(after))

    @rule(data=st.data(), tombstone=st.booleans())
    def leave(self, data: st.DataObject, tombstone: bool) -> None:
        if tablet := self.pick(data, records.CREATING, records.RUNNING):
            for peer in self.story.catalog.tablets[tablet].former[:1]:
                self.story.apply(e.FormerMembersGone(peer.uuid, (tablet,), tombstone))
                held = {each.uuid for each in self.story.catalog.tablets[tablet].holders()}
                assert (peer.uuid in held) == tombstone

    @rule(address=st.sampled_from("stu"), notice=st.sampled_from(NOTICES))
    def notice(self, address: str, notice: tuple[type[e.Edit], str]) -> None:
        edit, name = notice
        self.story.apply(edit(address, address not in getattr(self.story.catalog, name)))

    @rule(data=st.data())
    def time_out(self, data: st.DataObject) -> None:
        if tablet := self.pick(data, records.CREATING):
            successor = self.fresh()
            self.story.apply(e.TabletReplaced(tablet, successor, self.counter))
            self.states[tablet], self.states[successor] = records.REPLACED, records.PREPARING
            for tablets in self.names.values():
                tablets[:] = [successor if t == tablet else t for t in tablets]

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        if tablet := self.pick(data, records.DELETED, records.REPLACED):
            self.story.apply(e.TabletsForgotten((tablet,)))
            del self.states[tablet]

    @invariant()
    def the_catalog_is_the_model(self) -> None:
        catalog = self.story.catalog
        assert {r.name: list(r.tablets) for r in catalog.running_tables()} == self.names
        assert {tablet: record.state for tablet, record in catalog.tablets.items()} == self.states
        by_state = {state: {t for t, s in self.states.items() if s == state} for state in records.LIVE}
        assert set(catalog.preparing) == by_state[records.PREPARING]
        assert set(catalog.creating) == by_state[records.CREATING]
        assert set(catalog.ended) == {t for t, s in self.states.items() if s not in records.LIVE}
        assert set(catalog.unseen) == {t for t, r in catalog.tablets.items() if r.unseen}
        assert _held(catalog.members) == _held(_recounted(catalog))
        require_sound(catalog)

    def teardown(self) -> None:
        """A replay of all edits, and of the rest over an image from the middle, give the same catalog."""
        whole = Catalog()
        whole.apply(e.decode(e.encode(self.story.edits)))
        assert whole.image() == self.story.catalog.image()
        first = Catalog()
        half = len(self.story.edits) // 2
        first.apply(self.story.edits[:half])
        second = Catalog()
        second.load(first.image())
        second.apply(self.story.edits[half:])
        assert second.image() == self.story.catalog.image()
        notices = [name for _, name in NOTICES]
        for name in ("preparing", "creating", "unseen", "formers", "ended", "names", *notices):
            assert set(getattr(second, name)) == set(getattr(whole, name))


CatalogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCatalogMachine = CatalogMachine.TestCase
