"""`ebla up` and `ebla down`: what they refuse, what they start and end, and what they warn of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import ray
import ray.exceptions

from ebla.actors.errors import Unavailable, to_frame
from ebla.actors.ray_shell import FAILED, RUNNING, Pong
from ebla.placement import launch, state
from ebla.placement.asking import AWAY, RoleStatus
from ebla.placement.config import configure
from ebla.placement.deploy import groups, memory
from ebla.placement.deploy.groups import Group
from ebla.placement.deploy.slots import Host
from ebla.placement.journal import journals
from ebla.storage.errors import Damaged, InvalidArgument
from tests.placement.stage import SILENT, Stage, running


def test_a_deployment_without_an_active_master_is_not_ready() -> None:
    roles = (RoleStatus("master/0", "a", RUNNING),)
    report = launch.UpReport("t", "n", "/d", (), (), roles, {}, ())
    assert report.ready
    assert not launch.UpReport("t", "n", "/d", (), (), roles, {}, (journals.INACTIVE,)).ready


def test_a_host_that_has_not_joined_a_new_ray_cluster_is_named_with_the_remedy(stage: Stage) -> None:
    """Nothing of Ray waits for it, so its roles do not come back by themselves."""
    stage.up(masters=2, journals=3)
    stage.forget_ray("a", "c", "d")
    report = stage.up()
    assert report.warnings[0] == "hosts that had roles have not joined: b; run `ebla up` when they have"
    away = {role.address: role.error or "" for role in report.roles if role.state == AWAY}
    assert list(away) == ["master/1"]
    assert all("run `ebla up` when a node with this label has joined" in why for why in away.values())
    stage.hosts = ["a", "b", "c", "d"]
    report = stage.up()
    assert sorted(report.launched) == ["master/1", "tablet-server/b"] and report.ready
    assert report.warnings == ()


def test_a_host_that_is_away_for_a_while_gets_its_roles_back_by_itself(stage: Stage) -> None:
    stage.up(masters=1, journals=1)
    stage.hosts.remove("b")
    (warning,) = stage.up().warnings
    assert "the role comes back when a node with this label joins" in warning


def test_slots_leave_out_no_host_whose_server_runs(stage: Stage) -> None:
    """Its server would run on unseen, and not start again."""
    stage.up(masters=1, journals=1)
    before = stage.saved("a")
    with pytest.raises(
        InvalidArgument, match=r"out c, d, .*`ebla nodes decommission c --stop`, or name them"
    ):
        stage.up(slots=["a", "b"])
    assert stage.saved("a") == before
    for gone in "cd":  # as after a decommission
        del stage.actors[f"tablet-server/{gone}"]
    report = stage.up(slots=["a", "b"])
    assert report.launched == () and report.ready
    assert stage.up().ready
    stage.down()
    stage.up(slots=["a"])
    assert list(stage.servers()) == ["tablet-server/a"], "nothing ran"


# -- the data directory --------------------------------------------------------------------------------------


def test_up_with_another_data_directory_than_that_of_running_roles_is_refused_before_anything_is_written(
    stage: Stage,
) -> None:
    stage.up(masters=1, journals=1)
    del stage.actors["tablet-server/c"]
    before = dict(stage.actors)
    elsewhere = stage.root / "elsewhere"
    wanted = {"name": "t", "data_dir": str(elsewhere)}
    for settings in (wanted, configure(wanted)):
        with pytest.raises(InvalidArgument, match=rf"not in {elsewhere}; use `--data-dir {stage.here}`$"):
            launch.up(settings, timeout_s=1.0)
    assert stage.actors == before and not elsewhere.exists()


def test_the_data_directory_of_running_roles_is_used_if_none_is_given(stage: Stage) -> None:
    stage.up(masters=1, journals=1)
    del stage.actors["tablet-server/c"]
    report = launch.up({"name": "t"}, timeout_s=1.0)
    assert (report.launched, report.data_dir) == (("tablet-server/c",), stage.here)
    assert stage.servers()["tablet-server/c"] == f"{stage.here}/c/tablet-server"


def test_roles_that_run_in_two_directories_are_refused_by_name(stage: Stage) -> None:
    stage.up(masters=1, journals=1)
    stage.actors["tablet-server/c"] = running("tablet-server/c", "/wrong/c/tablet-server")
    for settings in ({}, {"data_dir": stage.here}):
        with pytest.raises(
            InvalidArgument, match=r"tablet-server/c.* in .*/wrong, .*; run `ebla down`, then"
        ):
            launch.up({"name": "t", **settings}, timeout_s=1.0)


def test_no_deployment_begins_beside_roles_that_do_not_say_where_their_data_is(stage: Stage) -> None:
    stage.actors["tablet-server/c"] = SILENT
    with pytest.raises(Unavailable, match=r"tablet-server/c exist and do not answer.*`ebla down` ends them"):
        stage.up()
    stage.actors.clear()
    stage.up()
    stage.actors["tablet-server/c"] = SILENT
    assert not stage.up().ready, "the saved state is there"


# -- the saved state -----------------------------------------------------------------------------------------


def test_the_newest_state_of_all_hosts_counts_and_changes_to_it_are_stored_everywhere(stage: Stage) -> None:
    """The host of the command may have an older copy: it was away, or is no host of the deployment."""
    stage.up(masters=1, journals=1)
    older = Path(stage.here, state.FILE).read_bytes()
    stage.up(logs=True)
    newer = stage.saved("a")
    Path(stage.here, state.FILE).write_bytes(older)
    stage.up({"master": {"tables_max": 7}})
    for slot in ("a", "d", "here"):
        now = stage.saved(slot)
        assert (now.config.logs, now.config.master) == (True, {"tables_max": 7})
        assert now.revision == newer.revision + 1


def test_up_changes_only_the_given_settings_also_on_a_host_without_a_copy(stage: Stage) -> None:
    """A new head, or another host of the cluster."""
    stage.up({"tablet_server": {"memtable_bytes": 2_000_000}}, logs=True, slots=["a", "b", "c"])
    before = stage.saved("a")
    Path(stage.here, state.FILE).unlink()
    assert stage.up().launched == () and stage.saved("a") == before
    stage.up({"tablet_server": {"heartbeat_s": 2.0}})
    now = stage.saved("here").config
    assert now.tablet_server == {"memtable_bytes": 2_000_000, "heartbeat_s": 2.0}
    assert (now.logs, now.slots) == (True, ("a", "b", "c"))


def test_up_with_all_settings_replaces_the_saved_ones(stage: Stage) -> None:
    stage.up({"master": {"tables_max": 7}})
    launch.up(configure({"name": "t", "data_dir": stage.here}), timeout_s=1.0)
    assert stage.saved("a").config.master == {}


def test_logs_are_added_to_the_saved_settings(stage: Stage) -> None:
    stage.up({"master": {"tables_max": 7}})
    Path(stage.here, state.FILE).unlink()
    assert "ledger-store/a" in launch.start_logs("t", timeout_s=1.0).launched
    assert stage.saved("here").config.master == {"tables_max": 7}


def test_a_state_of_another_deployment_on_any_host_is_refused_and_stays(stage: Stage) -> None:
    stage.up(masters=1, journals=1)
    stranger = msgspec.structs.replace(stage.saved("a"), uuid="f" * 32, revision=9, masters=("d",))
    Path(stage.disk("d"), state.FILE).write_bytes(state.encode(stranger))
    with pytest.raises(InvalidArgument, match=r"several deployments .* ffffffff with masters on d"):
        stage.up(logs=True)
    assert stage.saved("d") == stranger and not stage.saved("a").config.logs


def test_a_hung_host_does_not_keep_up_from_starting_roles_elsewhere(stage: Stage) -> None:
    """It is waited for when its copy could be the only one, and when something is to be saved."""
    stage.up(masters=1, journals=1)
    del stage.actors["tablet-server/b"]
    stage.silent = {"d"}
    assert stage.up().launched == ("tablet-server/b",)
    with pytest.raises(Unavailable, match="d gives no answer"):
        stage.up(logs=True)
    Path(stage.here, state.FILE).unlink()
    with pytest.raises(Unavailable, match="d gives no answer"):
        stage.up()


class Ray:
    """What memory needs of Ray. `answers`: of the tasks, in their order; None if it is late."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    def remote(self, **options: object) -> Any:
        asked = iter(range(len(self.answers)))
        task = SimpleNamespace(remote=lambda *arguments: next(asked))
        return lambda work: SimpleNamespace(options=lambda **options: task)

    def wait(self, references: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        return [], [each for each in references if self.answers[each] is None]

    def get(self, reference: int) -> object:
        answer = self.answers[reference]
        if isinstance(answer, Exception):
            raise ray.exceptions.RayTaskError("save", "a traceback", answer).as_instanceof_cause()
        return answer


def test_what_a_task_on_a_host_refuses_is_said_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [Host(slot, slot, "10.0.0.1") for slot in "abc"]

    def ask(*answers: object, needed: bool = True) -> dict[str, Any]:
        substitute = Ray(*answers)
        for name in ("remote", "wait", "get"):
            monkeypatch.setattr(ray, name, getattr(substitute, name))
        return memory._on_each(hosts, print, needed=needed)

    assert ask(1, 2, 3) == {"a": 1, "b": 2, "c": 3}
    assert ask(1, None, OSError("gone"), needed=False) == {"a": 1}
    with pytest.raises(Unavailable, match="within 150 s on b;"):
        ask(1, None, 3)
    with pytest.raises(Unavailable, match=r"cannot reach the data directory on c: .*; is it writable"):
        ask(1, 2, OSError("gone"))
    for needed in (True, False):
        with pytest.raises(InvalidArgument, match=r"^several deployments$"):
            ask(1, 2, InvalidArgument("several deployments"), needed=needed)


def test_a_group_without_room_is_named_by_every_up_until_ray_has_placed_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first `up` that finds no room leaves its group to Ray, which places it when there is room."""
    states = iter(["PENDING"] * 4)

    def present(deployment: str) -> list[Group]:
        now = next(states, "CREATED")
        return [msgspec.structs.replace(group, state=now) for group in stage.present(deployment)]

    monkeypatch.setattr(groups, "present", present)
    for state_now in ("unknown to Ray", "PENDING"):
        with pytest.raises(Unavailable, match=f"is {state_now}: Ray found no room for a, b, c, d; do these"):
            launch.up({"name": "t", "data_dir": stage.here}, timeout_s=0.0)
    assert stage.actors == {} and stage.up().ready


# -- down ----------------------------------------------------------------------------------------------------


def test_down_also_ends_the_roles_that_up_launches_meanwhile(stage: Stage) -> None:
    stage.up(masters=1, journals=1)

    def launches() -> None:
        stage.actors["tablet-server/c"] = SILENT
        stage.on_removal = lambda: None

    stage.on_removal = launches
    report = stage.down()
    assert stage.actors == {} and stage.placed == {}
    assert (report.killed, report.groups) == (("tablet-server/c",), ("ebla-t-1",))
    assert len(report.stopped) == 4 and report.data_dirs == (stage.here,)
    assert stage.down().data_dirs == ()


def test_down_says_so_if_roles_are_launched_without_an_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.up(masters=1, journals=1)
    stage.on_removal = lambda: stage.create("ebla-t-2", stage.survey().hosts)
    monkeypatch.setattr(launch, "DOWN_S", 0.1)
    with pytest.raises(Unavailable, match=r"still has ebla-t-2: let an `ebla up` .* run `ebla down` again"):
        stage.down()


def test_up_starts_a_role_again_that_could_not_start_and_reports_its_reason_if_it_still_cannot(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process stays up with the reason, so that Ray does not start it in a loop: only `ebla up` can."""
    stage.up(masters=1, journals=1)
    frame = to_frame(Damaged("no instance file", path="/d"))
    whole = stage.actors["tablet-server/b"]
    assert isinstance(whole, Pong)
    stage.actors["tablet-server/b"] = msgspec.structs.replace(whole, state=FAILED, error=frame)
    report = stage.up()
    assert report.ready and report.launched == ("tablet-server/b",)

    def still_fails(address: str, root: str) -> Pong:
        return msgspec.structs.replace(running(address, root), state=FAILED, error=frame)

    monkeypatch.setattr("tests.placement.stage.running", still_fails)
    stage.actors["tablet-server/b"] = still_fails("tablet-server/b", whole.root)
    report = stage.up()
    assert report.launched == ("tablet-server/b",) and not report.ready
    assert report.warnings == ("tablet-server/b is failed: Damaged: no instance file",)


def test_up_ends_the_actors_of_a_removed_group_and_launches_their_roles_again(stage: Stage) -> None:
    stage.up(masters=1, journals=1)
    stage.actors["tablet-server/b"] = SILENT
    assert not stage.up().ready, "the group is there: the actor starts when its host answers"
    (group,) = stage.present("t")
    stage.remove(group)  # its actors do not answer any more
    report = stage.up()
    assert report.ready and len(report.launched) == 5
    assert report.groups == {"ebla-t-2": ("a", "b", "c", "d")}
