"""`ebla coord`: reads, changes and refusals."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from ebla.actors.coordination.messages import OpenSessionRequest, SessionReply
from ebla.actors.coordination.service import OVERDUE_S
from ebla.coordination.awaited import Session
from ebla.errors import EblaError
from ebla.options import MASTER
from tests.cli.stage import Act, Cli, LogStage, Stage


async def some_nodes(stage: Stage) -> None:
    session = await stage.db.session(30.0, name="a worker")
    await session.create("/config", b"limits: 7")
    await session.create("/config/deep/er", b"\xff\x00", parents=True)
    await session.create("/workers/w-", b"host-a", ephemeral=True, sequential=True, parents=True)


def test_ls_lists_children_and_their_sessions(ebla: Cli) -> None:
    shown = ebla("coord ls", prepare=some_nodes)
    assert shown.status == 0
    assert [line.split()[0] for line in shown.lines] == ["NAME", "config", "workers"]
    below = ebla("coord ls /workers --json", prepare=some_nodes).json
    (node,) = below["nodes"]
    assert node["path"].startswith("/workers/w-") and node["data"] == "host-a" and node["session"]
    assert ebla("coord ls /config/deep/er", prepare=some_nodes).lines == ["/config/deep/er has no children"]


def test_get_shows_text_as_text_and_bytes_as_bytes(ebla: Cli) -> None:
    shown = ebla("coord get /config", prepare=some_nodes)
    assert "limits: 7" in shown.out and "none: it is permanent" in shown.out
    found = ebla("coord get /config/deep/er --json", prepare=some_nodes).json
    assert (found["data"], base64.b64decode(found["data_base64"])) == (None, b"\xff\x00")
    assert "2 B: b'\\xff\\x00'" in ebla("coord get /config/deep/er", prepare=some_nodes).out
    assert ebla("coord get /config --raw", prepare=some_nodes).out == "limits: 7"


def test_a_missing_node_is_an_error_with_the_next_step(ebla: Cli) -> None:
    missing = ebla("coord get /config/none", prepare=some_nodes)
    missing.require(1, "there is no node /config/none; see `ebla coord ls /config`")
    assert "`ebla coord ls '/a b'`" in ebla("coord get", "/a b/none").err
    assert "--create creates it" in ebla("coord set /none x").err
    assert ebla("coord ls nowhere").status == 2


def test_set_compares_versions_and_creates_nodes_on_request(ebla: Cli) -> None:
    made = ebla("coord set /a/b/c x --create --json").json
    assert (made["created"], made["version"]) == (True, 3)
    done = ebla("coord set /config new --version 1", prepare=some_nodes)
    assert (done.status, done.lines) == (0, ["set /config: version 6"])
    ebla("coord set /config new --version 2", prepare=some_nodes).require(1, "has version 1, not 2")
    again = ebla("coord set /config new --create --json", prepare=some_nodes).json
    assert again == {"path": "/config", "created": False, "version": 6}


def test_rm_deletes_a_node_and_with_recursive_its_descendants(ebla: Cli) -> None:
    refused = ebla("coord rm /config", prepare=some_nodes)
    refused.require(1, "has 1 children; delete them first")
    assert "next: `--recursive` deletes the nodes below, too" in refused.err
    assert ebla("coord rm /config -r -y --json", prepare=some_nodes).json["deleted"] == 3
    assert ebla("coord rm /config -r", prepare=some_nodes).status == 1, "the command needs a confirmation"
    assert ebla("coord rm /config/deep/er", prepare=some_nodes).lines == ["deleted 1 node"]


def test_rm_of_another_version_or_of_the_root_deletes_nothing(ebla: Cli) -> None:
    def nodes(stage: Stage) -> Any:
        return stage.cluster.role(MASTER).active_term.master.coordination.namespace.nodes

    other = ebla("coord rm /config -r -y --version 77", prepare=some_nodes, after=nodes)
    other.require(1, "/config has version 1, not 77")
    assert "/config/deep/er" in other.seen
    for words in ("/", "/ -r -y", "/ -r -y --version 1"):
        root = ebla(f"coord rm {words}", prepare=some_nodes, after=nodes)
        root.require(2, "the root cannot be deleted; name a node below it")
        assert root.seen is None or "/config/deep/er" in root.seen
    right = ebla("coord rm /config -r -y --version 1 --json", prepare=some_nodes)
    assert right.json["deleted"] == 3


@pytest.mark.parametrize(
    ("words", "path", "lost"),
    [
        ("rm", "/ebla/logs/events", "this log with all of its records"),
        ("rm -r", "/ebla/ledgers", "every log with all of its records"),
        ("rm -r", "/ebla", "every log with all of its records"),
        ("set", "/ebla/logs/events", "this log with all of its records"),
    ],
)
def test_a_node_of_ebla_itself_is_changed_only_by_force_and_after_a_question(
    logged: Cli, words: str, path: str, lost: str
) -> None:
    async def log_left(stage: LogStage) -> bool:
        try:
            await stage.db.log("events")
            return len([each async for each in (await stage.db.log("events")).read()]) == 5
        except EblaError:
            return False

    data = ["x"] if words == "set" else []
    refused = logged(f"coord {words} -y", path, *data, after=log_left)
    refused.require(1, f"{path} is ebla's own, and a change by hand may lose {lost}")
    assert "`ebla log delete`" in refused.err and "--force" in refused.err and refused.seen is not False
    asked = logged(f"coord {words} --force", path, *data, after=log_left)
    asked.require(1, f"loses {lost}, for good")
    assert asked.seen is True
    forced = logged(f"coord {words} --force -y", path, *data, after=log_left)
    assert (forced.status, forced.seen) == (0, False), forced.err


def test_a_node_whose_name_only_begins_like_one_of_ebla_is_the_users(ebla: Cli) -> None:
    assert ebla("coord set /eblas x --create").status == 0


def test_set_takes_bytes_that_are_no_text(ebla: Cli) -> None:
    async def data(stage: Stage) -> bytes:
        return (await stage.db.coordination.get("/config")).data

    done = ebla("coord set /config", "a\udcff", prepare=some_nodes, after=data)
    assert (done.status, done.seen) == (0, b"a\xff"), done.err


def test_rm_in_several_changes_meets_concurrent_changes(ebla: Cli) -> None:
    async def many(stage: Stage) -> None:
        session = await stage.db.session(30.0)
        for number in range(250):
            await session.create(f"/many/{number % 7}/{number}", parents=True)
        await session.create("/left", b"1")

    def disturbed(act: Callable[[Session], Awaitable[object]]) -> Act:
        """Call `act` immediately before the second change of the command."""

        async def prepare(stage: Stage) -> None:
            await many(stage)
            other = await stage.db.session(30.0)
            service, changes = stage.cluster.role(MASTER).active_term.master.coordination, count()
            honest = service.change_nodes

            async def change(request: Any) -> Any:
                if request.session != other.id and next(changes) == 1:
                    await act(other)
                return await honest(request)

            service.change_nodes = change

        return prepare

    gone = ebla("coord rm /many -r -y --json", prepare=many)
    assert gone.json["deleted"] == 258
    made = disturbed(lambda other: other.create("/many/6/new"))
    assert ebla("coord rm /many -r -y --json", prepare=made).json["deleted"] == 259
    set_again = disturbed(lambda other: other.set("/many", b"new"))
    refused = ebla("coord rm /many -r -y --version 1", prepare=set_again)
    refused.require(1, "99 nodes below it had been deleted by then")


def test_sessions_are_listed_and_a_command_leaves_none(ebla: Cli) -> None:
    shown: Any = ebla("coord sessions --json", prepare=some_nodes).json
    (session,) = shown["sessions"]
    assert (session["name"], session["nodes"], session["timeout_ms"]) == ("a worker", 1, 30_000)
    assert "a worker" in ebla("coord sessions", prepare=some_nodes).out
    assert ebla("coord sessions").lines == ["no sessions"]


async def a_session_that_cannot_expire(stage: Stage) -> None:
    """Open a session of a client that ends, with a master whose edits are never written."""
    network = stage.cluster.client_world("gone").network
    request = OpenSessionRequest("once", 1000, "left behind")
    await network.call(MASTER, "open_session", request, SessionReply, 5.0)
    stage.cluster.role(MASTER).active_term.master.log.append = lambda edits: asyncio.Event().wait()
    await asyncio.sleep(1.0 + OVERDUE_S + 0.5)


def test_check_counts_sessions(ebla: Cli) -> None:
    assert ebla("check", prepare=some_nodes).lines[-1].endswith("3 of 3 servers up, 1 session")
    (master,) = ebla("check --json", prepare=some_nodes).json["masters"]
    assert (master["status"], master["sessions"], master["sessions_overdue"]) == ("HEALTHY", 1, 0)
    assert "session" not in ebla("check").out


def test_expired_sessions_that_remain_are_a_finding(ebla: Cli) -> None:
    found = ebla("check --json", prepare=a_session_that_cannot_expire)
    (master,) = found.json["masters"]
    assert (found.status, master["sessions"], master["sessions_overdue"]) == (1, 1, 1)
    assert found.json["status"] == "RECOVERING"
    shown = ebla("check", prepare=a_session_that_cannot_expire).text
    assert f"{MASTER}: 1 session has expired and is still there: no edit goes through" in shown
