"""A role directory is new only once, and is used by one incarnation at a time."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from ebla.storage.directories.instance import (
    FAILED,
    FORMAT,
    INSTANCE,
    LOCK,
    InstanceDirectory,
    make_directory,
    write_durably,
)
from ebla.storage.errors import Damaged, DirectoryLocked, DiskFailed, OldCopy


def start(root: Path, *data_dirs: Path, uuid: str = "one"):
    directory = InstanceDirectory(root, data_dirs)
    instance = directory.open(uuid)
    directory.close()
    return instance


def test_an_absent_directory_is_formatted_and_every_start_raises_its_number(tmp_path):
    root = tmp_path / "deep" / "role"
    assert start(root) == ("one", 1, True)
    assert start(root, uuid="two") == ("one", 2, False)
    assert start(root, uuid="three") == ("one", 3, False)


def test_an_empty_directory_is_formatted(tmp_path):
    assert start(tmp_path).created


def test_an_interrupted_format_begins_again(tmp_path):
    (tmp_path / LOCK).write_text("4711\n")
    (tmp_path / (INSTANCE + ".new")).write_bytes(b'{"for')
    assert start(tmp_path) == ("one", 1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [INSTANCE, LOCK]


def test_an_interrupted_raise_leaves_the_last_number(tmp_path):
    start(tmp_path)
    (tmp_path / (INSTANCE + ".new")).write_bytes(b"half")
    assert start(tmp_path) == ("one", 2, False)


def test_a_directory_with_contents_and_no_instance_is_damaged(tmp_path):
    (tmp_path / "wals").mkdir()
    with pytest.raises(Damaged, match="wals"):
        start(tmp_path)
    assert not (tmp_path / INSTANCE).exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00" * 100, b'{"format": 2, "uuid": 3}'])
def test_an_unreadable_instance_is_damaged(tmp_path, content):
    start(tmp_path)
    (tmp_path / INSTANCE).write_bytes(content)
    with pytest.raises(Damaged, match="move the directory aside"):
        start(tmp_path)
    assert (tmp_path / INSTANCE).read_bytes() == content


@pytest.mark.parametrize("changes", [{}, {"seqno": {"host": 1}}, {"a newer field": 1}])
def test_a_newer_format_is_refused_and_left_alone_whatever_else_has_changed(tmp_path, changes):
    """It is not called unreadable: the remedy for that would give the data up."""
    start(tmp_path)
    file = msgspec.json.decode((tmp_path / INSTANCE).read_bytes())
    newer = msgspec.json.encode(file | {"format": FORMAT + 1} | changes)
    (tmp_path / INSTANCE).write_bytes(newer)
    with pytest.raises(Damaged, match=f"format {FORMAT + 1}, .*; use the version that wrote it") as refused:
        start(tmp_path)
    assert "aside" not in refused.value.message and (tmp_path / INSTANCE).read_bytes() == newer


def test_an_instance_with_an_unknown_field_is_refused_before_the_field_is_lost(tmp_path):
    start(tmp_path)
    file = msgspec.json.decode((tmp_path / INSTANCE).read_bytes())
    (tmp_path / INSTANCE).write_bytes(msgspec.json.encode(file | {"newer": 1}))
    with pytest.raises(Damaged, match=r"`newer`.*if another version of ebla wrote it, use that one"):
        start(tmp_path)


def test_a_second_incarnation_is_refused_until_the_first_closes(tmp_path):
    first, second = InstanceDirectory(tmp_path), InstanceDirectory(tmp_path)
    first.open("one")
    with pytest.raises(DirectoryLocked, match=r"held by process \d+"):
        second.open("two")
    first.close()
    assert second.open("two") == ("one", 2, False)
    second.close()


def test_a_refused_start_releases_the_lock(tmp_path):
    (tmp_path / "something").touch()
    for _ in range(2):
        with pytest.raises(Damaged):
            start(tmp_path)


def test_a_directory_given_up_stays_given_up(tmp_path):
    directory = InstanceDirectory(tmp_path)
    directory.open("one")
    directory.mark_failed("the sync of wals/shared failed")
    directory.close()
    with pytest.raises(DiskFailed, match=r"wals/shared failed.*move the directory aside"):
        start(tmp_path)
    (tmp_path / FAILED).write_bytes(b"")  # a marker that could not be written is a marker
    with pytest.raises(DiskFailed):
        start(tmp_path)


def test_an_old_copy_that_was_given_up_says_why_at_every_start(tmp_path):
    directory = InstanceDirectory(tmp_path)
    directory.open("one")
    assert directory.give_up("it is older than its server; set it aside")
    directory.close()
    for _ in range(2):
        with pytest.raises(OldCopy, match=r"^it is older than its server; set it aside .*was given up"):
            start(tmp_path)


def test_the_next_start_continues_from_a_raised_number(tmp_path):
    directory = InstanceDirectory(tmp_path)
    directory.open("one")
    assert [directory.raise_seqno(1000), directory.raise_seqno(1000)] == [1001, 2001]
    directory.close()
    assert start(tmp_path) == ("one", 2002, False)


def test_a_directory_that_replaced_the_locked_one_is_left_alone(tmp_path):
    root = tmp_path / "role"
    first = InstanceDirectory(root)
    first.open("one")
    root.rename(tmp_path / "aside")
    with pytest.raises(Damaged, match="only while its server is down"):
        first.raise_seqno(1000)
    assert not first.give_up("it is old")
    assert start(root, uuid="two") == ("two", 1, True)
    with pytest.raises(Damaged, match="only while its server is down"):
        first.raise_seqno(1000)
    assert not first.give_up("it is old")
    first.close()
    assert start(root) == ("two", 2, False)
    assert start(tmp_path / "aside") == ("one", 2, False)


def test_a_start_removes_half_made_and_half_removed_directories(tmp_path):
    start(tmp_path)
    for name in ("wals/a.new", "data/b.removed", "top.new"):
        make_directory(tmp_path / name)
        (tmp_path / name / "data.mdb").write_bytes(b"x")
    make_directory(tmp_path / "wals/kept")
    start(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["data", INSTANCE, LOCK, "wals", "wals/kept"]


def test_data_directories_belong_to_one_instance(tmp_path):
    start(tmp_path / "a", tmp_path / "disk")
    with pytest.raises(Damaged, match="belongs to one"):
        start(tmp_path / "b", tmp_path / "disk", uuid="two")


def lost_at(root, *data_dirs):
    directory = InstanceDirectory(root, data_dirs)
    directory.open("one")
    directory.close()
    return {path.name: why for path, why in directory.lost.items()}


def link_to(root, disk):
    make_directory(root / "data")
    (root / "data/a").symlink_to(disk / "data/a")


@pytest.mark.parametrize(
    ("harm", "reason", "keeps_instance"),
    [
        (shutil.rmtree, "not there", False),
        (lambda disk: (disk / INSTANCE).unlink(), "it is empty", False),  # as if it were not mounted
        (lambda disk: (disk / INSTANCE).rename(disk / "else"), "has contents", False),
        (lambda disk: (disk / INSTANCE).write_bytes(b"{"), "unreadable", True),
        (lambda disk: (disk / FAILED).write_bytes(b""), "a sync failed", True),
    ],
)
def test_a_changed_data_directory_is_lost_and_not_new(tmp_path, harm, reason, keeps_instance):
    root, disks = tmp_path / "role", (tmp_path / "a", tmp_path / "b")
    start(root, *disks)
    link_to(root, disks[0])
    harm(disks[0])
    for _ in range(2):
        lost = lost_at(root, *disks)
        assert list(lost) == ["a"] and reason in lost["a"]
    assert keeps_instance or not (disks[0] / INSTANCE).exists()


def test_a_failed_sync_in_a_data_directory_is_remembered_without_a_mark_there(tmp_path):
    root, disk = tmp_path / "role", tmp_path / "disk"
    directory = InstanceDirectory(root, [disk])
    directory.open("one")
    link_to(root, disk)
    disk.rename(tmp_path / "away")
    directory.lose(disk, "Input/output error")
    assert directory.raise_seqno(10) == 11
    directory.close()
    (tmp_path / "away").rename(disk)
    assert lost_at(root, disk) == lost_at(root, disk) == {"disk": "Input/output error"}


def test_a_lost_data_directory_is_replaced_when_it_is_empty_and_no_tablet_links_to_it(tmp_path):
    root, disk = tmp_path / "role", tmp_path / "disk"
    directory = InstanceDirectory(root, [disk])
    directory.open("one")
    directory.lose(disk, "Input/output error")
    directory.close()
    link_to(root, disk)
    assert lost_at(root, disk) == {"disk": "Input/output error"}
    shutil.rmtree(disk)
    assert "not there" in lost_at(root, disk)["disk"]
    (root / "data/a").unlink()
    assert lost_at(root, disk) == lost_at(root, disk) == {}
    assert (disk / INSTANCE).exists() and not (disk / FAILED).exists()


def test_a_data_directory_removed_from_the_settings_counts_while_a_tablet_links_to_it(tmp_path):
    root, disk = tmp_path / "role", tmp_path / "disk"
    start(root, disk)
    link_to(root, disk)
    shutil.rmtree(disk)
    assert list(lost_at(root)) == ["disk"]
    (root / "data/a").unlink()
    assert lost_at(root) == {}
    assert not disk.exists()


def test_a_new_data_directory_with_contents_is_refused(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/mine").touch()
    with pytest.raises(Damaged, match="has contents"):
        start(tmp_path / "role", tmp_path / "disk")
    assert (tmp_path / "disk/mine").exists()


def test_a_data_directory_may_be_added_later(tmp_path):
    start(tmp_path / "role", tmp_path / "a")
    assert start(tmp_path / "role", tmp_path / "a", tmp_path / "b").seqno == 2
    assert start(tmp_path / "role", tmp_path / "a", tmp_path / "b").seqno == 3


def test_a_durable_write_replaces_the_whole_file(tmp_path):
    write_durably(tmp_path / "f", b"long content")
    write_durably(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
