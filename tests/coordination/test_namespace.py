"""The namespace alone: effects of requests, refusals, and numbers that never repeat."""

from __future__ import annotations

import msgspec
import pytest

from ebla.actors.coordination import namespace as module
from ebla.actors.coordination import paths
from ebla.actors.coordination.errors import LimitReached, NotEmpty, SessionExpired, VersionMismatch
from ebla.actors.coordination.limits import Limits
from ebla.actors.coordination.messages import Check, Create, Delete, Set
from ebla.actors.errors import AlreadyPresent, NotFound, RequestReused, StaleRequest, Throttled
from ebla.actors.master.catalog.catalog import Catalog
from ebla.storage.errors import InvalidArgument
from tests.coordination.room import Room


@pytest.fixture
def room() -> Room:
    made = Room()
    made.open()
    return made


# -- nodes


def test_versions_are_compared_and_never_repeat_after_a_deletion(room: Room):
    first = room.create("/a", b"1").version
    second = room.set("/a", b"2", first).version
    with pytest.raises(VersionMismatch) as refused:
        room.set("/a", b"3", first)
    assert (refused.value.wanted, refused.value.found) == (first, second)
    room.delete("/a", second)
    assert room.create("/a", b"1").version not in (first, second)
    with pytest.raises(VersionMismatch):
        room.delete("/a", first)
    assert room.data("/a") == b"1"


def test_missing_and_existing_nodes_are_reported(room: Room):
    with pytest.raises(NotFound, match="/a: create it first"):
        room.create("/a/b")
    with pytest.raises(NotFound):
        room.set("/a", b"")
    with pytest.raises(NotFound):
        room.delete("/a")
    with pytest.raises(VersionMismatch) as refused:
        room.set("/a", b"", 7)
    assert refused.value.found == 0
    room.create("/a")
    with pytest.raises(AlreadyPresent):
        room.create("/a")
    room.create("/a/b")
    with pytest.raises(NotEmpty):
        room.delete("/a")


def test_parents_are_created_on_request_and_have_no_session(room: Room):
    room.create("/a/b/c", ephemeral=True, parents=True)
    assert [room.namespace.nodes[path].owner for path in ("/a", "/a/b", "/a/b/c")] == ["", "", "s"]
    room.create("/a/b/d", parents=True)
    room.end()
    assert room.namespace.children("/a/b") == ("d",)


def test_a_request_of_several_operations_is_atomic(room: Room):
    made = room.create("/a", b"1").version
    with pytest.raises(VersionMismatch):
        room.ask(Set("/a", b"2"), Create("/b"), Check("/a", made))
    assert (room.data("/a"), room.data("/b")) == (b"1", None)
    results = room.ask(Check("/a", made), Create("/b"), Create("/b/c"), Delete("/b/c"), Set("/a", b"2", made))
    assert [result.path for result in results] == ["/a", "/b", "/b/c", "/b/c", "/a"]
    assert (room.data("/a"), room.namespace.children("/")) == (b"2", ("a", "b"))


def test_the_root_has_version_0_until_it_is_set(room: Room):
    room.expect("/", 0)
    with pytest.raises(VersionMismatch):
        room.expect("/a", 1)
    version = room.set("/", b"1").version
    room.expect("/", version)
    with pytest.raises(VersionMismatch):
        room.expect("/", 0)


def test_operations_of_a_request_see_earlier_ones(room: Room):
    with pytest.raises(AlreadyPresent):
        room.ask(Create("/a"), Create("/a"))
    with pytest.raises(NotEmpty):
        room.ask(Create("/a"), Create("/a/b"), Delete("/a"))
    one, two = room.ask(*[Create("/job-", sequential=True)] * 2)
    assert one.path < two.path
    room.ask(Create("/a"), Delete("/a"), Create("/a", b"again"))
    assert room.data("/a") == b"again"


def test_a_check_alone_changes_nothing(room: Room):
    made = room.create("/a").version
    before = room.namespace.revision
    assert room.expect("/a").version == made
    assert room.expect("/b", 0).version == 0
    with pytest.raises(VersionMismatch):
        room.expect("/a", 0)
    assert room.namespace.revision == before


def test_the_root_always_exists_and_may_have_data(room: Room):
    for operation in (Create("/"), Delete("/")):
        with pytest.raises(InvalidArgument):
            room.ask(operation)
    room.set("/", b"motto")
    room.reload()
    assert room.data("/") == b"motto"


# -- sequential nodes


def test_sequence_numbers_grow_and_sort_and_never_repeat(room: Room):
    made = [room.create("/q/job-", sequential=True, parents=True).path]
    made += [room.create("/q/job-", sequential=True).path for _ in range(12)]
    assert made == sorted(made) and len(set(made)) == 13
    for path in made:
        room.delete(path)
    room.reload()
    assert room.create("/q/job-", sequential=True).path > made[-1]
    (child,) = room.namespace.children("/q")
    room.delete(f"/q/{child}")
    room.delete("/q")
    room.reload()
    again = room.create("/q/job-", sequential=True, parents=True).path
    assert again > made[-1], "even if the parent was created again"
    assert paths.number(again) == room.namespace.nodes[again].created


def test_a_sequential_node_skips_an_existing_name(room: Room):
    room.create(paths.numbered("/job-", 3))
    room.create("/other")
    assert room.create("/job-", sequential=True).path == paths.numbered("/job-", 4)
    assert paths.number("/job-x") is None
    assert paths.number("job-1234") is None


# -- sessions


def test_the_end_of_a_session_deletes_only_its_ephemeral_nodes(room: Room):
    room.open("t")
    room.create("/mine", ephemeral=True)
    room.create("/ours")
    room.create("/yours", session="t", ephemeral=True)
    room.end("s")
    assert room.namespace.children("/") == ("ours", "yours")
    with pytest.raises(SessionExpired) as refused:
        room.create("/more")
    assert refused.value.session == "s"
    room.reload()
    room.end("t")
    assert room.namespace.children("/") == ("ours",)


def test_an_ephemeral_node_has_no_children(room: Room):
    room.create("/a", ephemeral=True)
    with pytest.raises(InvalidArgument, match="is ephemeral"):
        room.create("/a/b")
    with pytest.raises(InvalidArgument, match="is ephemeral"):
        room.create("/a/b/c", parents=True)


def test_a_repeated_request_gets_the_first_answer_also_after_a_checkpoint(room: Room):
    operation = Create("/q/job-", ephemeral=True, sequential=True, parents=True)
    first = room.ask(operation, number=5)
    assert room.ask(operation, number=5) == first
    room.reload()
    assert room.ask(operation, number=5) == first
    assert room.namespace.children("/q") == (paths.name(first[0].path),)
    with pytest.raises(RequestReused):
        room.ask(Create("/else"), number=5)


def test_a_request_given_up_by_its_client_is_not_carried_out(room: Room):
    room.ask(Create("/a"), number=3, unanswered=3)
    with pytest.raises(StaleRequest):
        room.ask(Create("/b"), number=2, unanswered=2)
    room.ask(Create("/c"), number=4, unanswered=4)
    assert [answer.number for answer in room.namespace.sessions["s"].answers] == [4]
    room.ask(Create("/late"), number=6, unanswered=4)
    room.ask(Create("/later"), number=5, unanswered=4)
    assert [answer.number for answer in room.namespace.sessions["s"].answers] == [4, 6, 5]


def test_a_refusal_is_not_remembered(room: Room):
    with pytest.raises(NotFound):
        room.ask(Delete("/a"), number=9)
    room.create("/a")
    assert room.ask(Delete("/a"), number=9)[0].path == "/a"


# -- changes


def test_a_change_is_reported_to_readers_of_an_older_revision(room: Room):
    assert not room.changed("/a", 0)
    made = room.create("/a").version
    assert room.changed("/a", made - 1) and not room.changed("/a", made)
    child = room.create("/a/b").version
    assert not room.changed("/a", made), "a new child does not change its parent's data"
    assert room.changed("/a", made, children=True) and not room.changed("/a", child, children=True)
    changed = room.set("/a/b", b"x").version
    assert not room.changed("/a", child, children=True), "the child's data does not change the list"
    gone = room.delete("/a/b").version
    assert room.changed("/a/b", changed) and room.changed("/a", child, children=True)
    assert not room.changed("/a/b", gone) and not room.changed("/a", gone, children=True)
    seen = room.namespace.revision
    room.create("/a/b")
    room.delete("/a/b")
    assert room.changed("/a/b", seen), "a node that was created and deleted is a change"


def test_an_unknown_history_counts_as_a_change(room: Room, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "GONE_MAX", 2)
    revisions = []
    for name in "abc":
        room.create(f"/{name}")
        revisions.append(room.delete(f"/{name}").version)
    assert len(room.namespace.gone) == 2
    assert room.changed("/a", revisions[0] - 1) and not room.changed("/a", revisions[0])
    assert room.changed("/never", 0) and not room.changed("/never", revisions[0])
    assert room.changed("/c", revisions[1])


def test_waiters_get_the_changed_paths(room: Room):
    room.create("/a/b", ephemeral=True, parents=True)
    assert room.told == ["/", "/a", "/a", "/a/b"]
    room.told.clear()
    room.set("/a", b"x")
    assert room.told == ["/a"]
    room.told.clear()
    room.end()
    assert room.told == ["/a", "/a/b"]


# -- limits


@pytest.mark.parametrize(
    "path", ["", "a", "/a/", "//", "/a//b", "/.", "/a/..", "/a\n", "/" + "x" * 129, "/x" * 17]
)
def test_an_invalid_path_is_refused(room: Room, path: str):
    with pytest.raises(InvalidArgument):
        room.create(path)


def test_the_name_of_a_sequential_node_leaves_room_for_its_number(room: Room):
    room.create("/" + "x" * (128 - paths.SEQUENCE_DIGITS), sequential=True)
    with pytest.raises(InvalidArgument):
        room.create("/" + "x" * (129 - paths.SEQUENCE_DIGITS), sequential=True)
    with pytest.raises(InvalidArgument):
        room.create("/", sequential=True)


@pytest.mark.parametrize(
    ("limits", "paths_made", "refused", "limit"),
    [
        (Limits(children_max=2), ["/a", "/b"], "/c", "children_max"),
        (Limits(nodes_max=4), ["/a", "/a/b", "/a/b/c"], "/a/b/c/d", "nodes_max"),
        (Limits(bytes_max=9), ["/a", "/b", "/c"], "/longer", "bytes_max"),
    ],
)
def test_a_full_namespace_names_the_limit(limits: Limits, paths_made: list[str], refused: str, limit: str):
    room = Room(limits)
    room.open()
    for path in paths_made:
        room.create(path)
    with pytest.raises(LimitReached, match=f"raise master.coordination.{limit}") as reported:
        room.create(refused)
    assert reported.value.limit == limit
    room.delete(paths_made[-1])
    room.create(paths_made[-1])


def test_a_too_large_request_is_refused(room: Room):
    with pytest.raises(InvalidArgument, match="data has 65536 bytes at most"):
        room.create("/a", b"x" * 65537)
    with pytest.raises(InvalidArgument, match="1 to 100 operations"):
        room.ask(*[Check("/")] * 101)
    with pytest.raises(InvalidArgument):
        room.ask()
    with pytest.raises(InvalidArgument):
        room.ask(Check("/"), number=1, unanswered=2)


def test_the_unanswered_requests_of_a_session_are_limited():
    room = Room(Limits(unanswered_max=3))
    room.open()
    for number in range(3):
        room.ask(Create(f"/{number}"), number=number)
    with pytest.raises(Throttled):
        room.ask(Create("/more"), number=3)
    assert len(room.namespace.sessions["s"].answers) == 3
    room.ask(Create("/more"), number=3, unanswered=1)
    assert len(room.namespace.sessions["s"].answers) == 3, "it acknowledges an answer"


def test_a_too_low_limit_of_answers_is_refused():
    with pytest.raises(InvalidArgument, match="unanswered_max must be 1000 at least, not 999"):
        Limits(unanswered_max=999).validate()


# -- the catalog around it


def test_a_checkpoint_omits_an_unused_namespace():
    empty = Catalog()
    assert len(empty) == 0
    assert set(msgspec.to_builtins(empty.image())) == {"tables", "tablets", "requests"}


def test_an_emptied_namespace_keeps_its_revision(room: Room):
    room.create("/a")
    room.delete("/a")
    room.end()
    room.reload()
    room.open("t")
    assert room.create("/a", session="t").version == 3
