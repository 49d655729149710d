"""The saved state of a deployment, and the recognition of its placement groups."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ebla.actors.errors import Unavailable
from ebla.placement import state
from ebla.placement.config import configure
from ebla.placement.deploy import groups
from ebla.placement.deploy.groups import Bundle, Group
from ebla.placement.deploy.slots import Host
from ebla.placement.state import Deployment
from ebla.storage.errors import Damaged, InvalidArgument


def deployment(name: str = "t", uuid: str = "u", revision: int = 1) -> Deployment:
    return Deployment(uuid=uuid, revision=revision, config=configure({"name": name}), masters=("a",))


def hosts(*slots: str) -> list[Host]:
    return [Host(slot, f"node-{slot}", "10.0.0.1") for slot in slots]


def test_a_saved_deployment_is_loaded(tmp_path: Path) -> None:
    kept = deployment().revised(groups={"ebla-t-1": ("a", "b")}, groups_made=1)
    state.save(str(tmp_path / "new" / "dir"), state.encode(kept))
    assert state.load(str(tmp_path / "new" / "dir")) == kept
    assert kept.revision == 2


def test_nothing_saved_is_not_an_error(tmp_path: Path) -> None:
    assert state.load(str(tmp_path)) is None


def test_an_empty_change_is_not_a_revision() -> None:
    assert deployment().revised(masters=("a",)) == deployment()


def test_an_older_or_a_different_revision_never_replaces_a_newer_one_and_is_not_lost_silently(
    tmp_path: Path,
) -> None:
    newest = deployment(revision=5)
    state.save(str(tmp_path), state.encode(newest))
    state.save(str(tmp_path), state.encode(newest))
    other = msgspec.structs.replace(newest, masters=("b",))
    for older in (deployment(revision=4), other):
        with pytest.raises(Unavailable, match=r"has saved revision 5; run `ebla up` again"):
            state.save(str(tmp_path), state.encode(older))
    assert state.load(str(tmp_path)) == newest


def test_the_state_of_another_deployment_is_never_replaced(tmp_path: Path) -> None:
    kept = deployment(uuid="u", revision=1)
    state.save(str(tmp_path), state.encode(kept))
    with pytest.raises(
        InvalidArgument, match=r"u with masters on a and v .*move the directory of the wrong one"
    ):
        state.save(str(tmp_path), state.encode(deployment(uuid="v", revision=9)))
    assert state.load(str(tmp_path)) == kept


def test_several_hosts_can_save_to_one_directory_at_once(tmp_path: Path) -> None:
    state.save(str(tmp_path), state.encode(deployment(revision=7)))
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.starmap(state.save, [(str(tmp_path), state.encode(deployment(revision=8)))] * 8)
    found = state.load(str(tmp_path))
    assert found is not None and found.revision == 8


@pytest.mark.parametrize("content", [b"", b"{", b"[]"])
def test_unreadable_saved_state_is_damaged_and_never_new(tmp_path: Path, content: bytes) -> None:
    (tmp_path / state.FILE).write_bytes(content)
    with pytest.raises(Damaged, match="restore it"):
        state.load(str(tmp_path))


def changed(**changes: Any) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(state.encode(deployment())) | changes)


@pytest.mark.parametrize("changes", [{}, {"config": {"a_new_setting": 1}}, {"revision": [1]}])
def test_saved_state_of_a_newer_format_is_not_called_unreadable_whatever_else_has_changed(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """The remedy for that would make a second deployment over the data."""
    (tmp_path / state.FILE).write_bytes(changed(format=2, **changes))
    with pytest.raises(Damaged, match=r"has format 2, .*; use the version that wrote it") as refused:
        state.load(str(tmp_path))
    assert "aside" not in refused.value.message


@pytest.mark.parametrize("changes", [{"newer": 1}, {"journal": {"id": "j", "slots": ["a"], "newer": 1}}])
def test_saved_state_with_an_unknown_field_is_refused_before_a_save_loses_the_field(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    (tmp_path / state.FILE).write_bytes(changed(**changes))
    with pytest.raises(Damaged, match=r"`newer`.*if another version of ebla wrote it, use that one"):
        state.load(str(tmp_path))


def test_the_newest_copy_counts() -> None:
    assert state.newest([None, deployment(revision=2), deployment(revision=3)], "t") == deployment(revision=3)
    assert state.newest([None], "t") is None


def test_a_data_dir_of_another_deployment_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="holds the deployment other, not t"):
        state.newest([deployment("other")], "t")


def test_hosts_with_different_saved_deployments_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="several deployments"):
        state.newest([deployment(uuid="u"), deployment(uuid="v")], "t")


# -- groups --------------------------------------------------------------------------------------------------


def test_new_slots_need_another_group() -> None:
    covered = {"ebla-t-1": ("a", "b")}
    assert groups.uncovered(hosts("a", "b", "c", "d"), covered) == hosts("c", "d")
    assert groups.uncovered(hosts("a"), covered) == []


def test_every_slot_has_one_bundle() -> None:
    found = groups.bundles({"ebla-t-1": ("a", "b"), "ebla-t-3": ("c",)})
    assert found == {"a": Bundle("ebla-t-1", 0), "b": Bundle("ebla-t-1", 1), "c": Bundle("ebla-t-3", 0)}


def test_a_group_is_recognised_by_saved_state_while_its_nodes_are_missing() -> None:
    present = [Group("ebla-t-1", "id", "RESCHEDULING", ("node-a", ""))]
    assert groups.recognise(present, {"ebla-t-1": ("a", "b"), "ebla-t-0": ("x",)}, hosts("a")) == {
        "ebla-t-1": ("a", "b")
    }


def test_without_saved_state_a_group_is_recognised_by_its_nodes() -> None:
    present = [Group("ebla-t-1", "id", "CREATED", ("node-b", "node-a"))]
    assert groups.recognise(present, {}, hosts("a", "b")) == {"ebla-t-1": ("b", "a")}


def test_without_saved_state_and_nodes_a_group_is_not_recognised() -> None:
    with pytest.raises(Unavailable, match="ebla-t-1 is not in deployment"):
        groups.recognise([Group("ebla-t-1", "id", "RESCHEDULING", ("node-a", ""))], {}, hosts("a"))
