"""The model of the disk: what a power cut may lose."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.chaos.powercut.cuts.platter import SECTOR_BYTES, Image, Platter
from ebla.chaos.powercut.recording import events as e

CUTS = 60


def cuts(events: list[e.Event], count: int = CUTS) -> list[Image]:
    """The images that a power cut after the last event leaves, for many seeds."""
    platter = Platter(events)
    platter.advance(len(events))
    return [platter.cut(random.Random(seed)) for seed in range(count)]


def names(image: Image, directory: int = 0) -> set[str]:
    return set(image.tree[directory])


def contents(events: list[e.Event], count: int = CUTS) -> set[bytes]:
    """Contents of the first file, in the cuts that keep the file."""
    return {image.files[1] for image in cuts(events, count) if 1 in image.files}


BORN: list[e.Event] = [e.Made(0, "file", 1, e.FILE), e.Write(1, 0, b"old" * 400), e.Sync(1, 2), e.Sync(0, 3)]
OLD = b"old" * 400


def test_synced_data_survives_every_cut() -> None:
    assert contents(BORN) == {OLD}
    assert all(names(image) == {"file"} for image in cuts(BORN))


def test_each_unsynced_sector_may_survive_or_not() -> None:
    found = contents([*BORN, e.Write(1, 0, b"new" * 400)], 300)
    assert {OLD, b"new" * 400} <= found
    torn = {data[:SECTOR_BYTES] == OLD[:SECTOR_BYTES] for data in found if data not in (OLD, b"new" * 400)}
    assert torn == {True, False}, "either half may be the older version"


def test_a_sync_covers_all_writes_before_its_beginning() -> None:
    begun = len(BORN) + 1
    found = contents([*BORN, e.Write(1, 0, b"N" * 512), e.Write(1, 512, b"M" * 512), e.Sync(1, begun)])
    assert {data[:512] for data in found} == {b"N" * 512}
    assert len({data[512:1024] for data in found}) == 2


def test_a_write_through_makes_only_itself_durable() -> None:
    events = [*BORN, e.Write(1, 0, b"A" * 512), e.Write(1, 512, b"B" * 512), e.WriteThrough(len(BORN) + 1)]
    found = contents(events)
    assert {data[512:1024] for data in found} == {b"B" * 512}
    assert len({data[:512] for data in found}) == 2


def test_a_file_has_one_of_its_former_sizes() -> None:
    grown: list[e.Event] = [*BORN, e.Write(1, 1200, b"x" * 600), e.Truncate(1, 100)]
    assert {len(data) for data in contents(grown, 300)} == {100, 1200, 1800}
    assert {len(data) for data in contents([*grown, e.Sync(1, len(grown))])} == {100}


def test_a_name_is_durable_after_a_sync_of_its_directory_not_of_its_file() -> None:
    born: list[e.Event] = [e.Made(0, "file", 1, e.FILE), e.Write(1, 0, b"x"), e.Sync(1, 2)]
    assert {frozenset(names(image)) for image in cuts(born)} == {frozenset(), frozenset({"file"})}
    assert all(names(image) == {"file"} for image in cuts([*born, e.Sync(0, 3)]))


def test_a_rename_is_atomic() -> None:
    beside: list[e.Event] = [
        *BORN,
        e.Made(0, "new", 2, e.FILE),
        e.Write(2, 0, b"new"),
        e.Sync(2, 6),
        e.Sync(0, 6),
    ]
    renamed: list[e.Event] = [*beside, e.Renamed(0, "new", 0, "file")]
    found = {(frozenset(names(image)), image.files[image.tree[0]["file"]]) for image in cuts(renamed)}
    assert found == {(frozenset({"file", "new"}), OLD), (frozenset({"file"}), b"new")}
    assert all(names(image) == {"file"} for image in cuts([*renamed, e.Sync(0, len(renamed))]))


def test_a_lost_directory_takes_its_files_along() -> None:
    events: list[e.Event] = [e.Made(0, "d", 1, e.DIRECTORY), e.Made(1, "file", 2, e.FILE), e.Sync(1, 2)]
    assert {frozenset(names(image)) for image in cuts(events)} == {frozenset(), frozenset({"d"})}
    assert all(names(image, 1) == {"file"} for image in cuts(events) if names(image))


def test_a_removal_may_be_undone_until_its_directory_is_synced() -> None:
    removed: list[e.Event] = [*BORN, e.Removed(0, "file")]
    assert {frozenset(names(image)) for image in cuts(removed)} == {frozenset(), frozenset({"file"})}
    assert not any(names(image) for image in cuts([*removed, e.Sync(0, len(removed))]))


def test_a_seed_repeats_its_cut() -> None:
    events = [*BORN, *(e.Write(1, at * 512, bytes([at]) * 512) for at in range(40))]
    first, again = cuts(events), cuts(events)
    assert [image.files for image in first] == [image.files for image in again]
    assert len({image.files[1] for image in first}) > CUTS // 3


def test_a_recorded_directory_can_be_written_to_any_path(tmp_path: Path) -> None:
    events: list[e.Event] = [
        e.Made(0, "disk", 1, e.DIRECTORY),
        e.Made(1, "instance", 2, e.FILE),
        e.Write(2, 0, b'{"data_dirs":["/recorded/disk"]}'),
        e.Made(0, "link", 3, e.LINK, "/recorded/disk"),
        e.Made(1, "data.mdb", 4, e.FILE),
        e.Write(4, 0, b"/recorded/disk"),
    ]
    platter = Platter(events)
    platter.advance(len(events))
    platter.whole().lay(tmp_path, "/recorded")
    assert (tmp_path / "link").readlink() == tmp_path / "disk"
    assert (tmp_path / "disk" / "instance").read_text() == f'{{"data_dirs":["{tmp_path}/disk"]}}'
    assert (tmp_path / "disk" / "data.mdb").read_bytes() == b"/recorded/disk", "contents are not changed"


WRITES = st.tuples(st.just("write"), st.integers(0, 2000), st.integers(1, 1500))
CHANGES = st.lists(
    st.one_of(WRITES, st.tuples(st.just("truncate"), st.integers(0, 3000)), st.just(("sync",))), max_size=14
)


@given(changes=CHANGES, seed=st.integers(0, 1 << 30))
def test_every_sector_has_a_state_since_the_last_sync(changes: list[tuple[object, ...]], seed: int) -> None:
    events: list[e.Event] = [e.Made(0, "file", 1, e.FILE), e.Sync(0, 1)]
    state = b""
    moments = [state]
    for at, change in enumerate(changes):
        match change:
            case ("write", int(offset), int(length)):
                data = bytes([at + 1]) * length
                events.append(e.Write(1, offset, data))
                state = state.ljust(offset, b"\0")
                state = state[:offset] + data + state[offset + length :]
            case ("truncate", int(size)):
                events.append(e.Truncate(1, size))
                state = state[:size].ljust(size, b"\0")
            case _:
                events.append(e.Sync(1, len(events)))
                moments = []
        moments.append(state)
    platter = Platter(events)
    platter.advance(len(events))
    assert platter.whole().files[1] == state
    found = platter.cut(random.Random(seed)).files[1]
    assert len(found) in {len(moment) for moment in moments}
    for start in range(0, len(found), SECTOR_BYTES):
        piece = found[start : start + SECTOR_BYTES]
        padded = {
            moment.ljust(len(found) + SECTOR_BYTES, b"\0")[start : start + len(piece)] for moment in moments
        }
        assert piece in padded, start


@pytest.mark.parametrize("kind", ["keeps all", "keeps none"])
def test_some_cuts_keep_everything_and_some_nothing(kind: str) -> None:
    events = [*BORN, *(e.Write(1, at * 512, b"y" * 512) for at in range(8))]
    whole, none = b"y" * 4096, OLD
    assert (whole if kind == "keeps all" else none) in contents(events)
