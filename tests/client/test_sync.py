"""The API that does not await: threads, closing, forks and interruptions, over a network inside the process."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType, SimpleNamespace

import pytest

import ebla
from ebla.errors import ConnectionClosed, InvalidArgument, NotFound
from ebla.link import Link
from ebla.options import Written
from ebla.transport.bridge import Bridge
from tests.client.loopback import Loopback
from tests.client.tables import arrow, row, rows
from tests.client.toy import address, silence


def test_every_call_of_the_api_works_without_awaiting(loopback: Loopback, table: ebla.Table) -> None:
    db = loopback.db
    assert table.upsert(arrow(100)) == Written(100)
    assert table.insert(row(1000)) == table.update({"id": 1000, "n": 7}) == Written(1)
    assert table.get({"id": 1000}) == row(1000, n=7)
    assert table.delete({"id": 1000}) == Written(1)
    assert table.get_many(rows(1, 1000)) == [{"id": 1, "v": f"{1:010}", "n": 1}, None]
    scan = table.scan(columns=["id"], where=ebla.col("n") < 5)
    assert sorted(scan.to_arrow()["id"].to_pylist()) == sorted(r["id"] for r in scan) == [0, 1, 2, 3, 4]
    assert scan.count() == len(scan.to_pandas()) == sum(b.num_rows for b in scan.batches()) == 5
    with pytest.raises(InvalidArgument, match=r"a scan cannot be pickled, .*: pickle the table"):
        pickle.dumps(scan)
    assert set(scan.indexes) == {"t000", "t001", "t002", "t003"}
    assert len(list(table)) == 100 and sorted(table.flush()) == sorted(scan.indexes)
    assert (table.count(ebla.col("n") < 5), table.delete(where=ebla.col("n") >= 90)) == (5, Written(10))
    assert table.count() == 90
    assert table.name == "t" and table.schema.names == [*scan.schema.names, "v", "n"]
    assert db.table("t").info().name == "t" and [t.name for t in db.tables()] == ["t"]
    assert repr(table) == "<ebla.Table 't': 3 columns, key (id), 4 tablets, 3 x raft>"
    assert repr(db.coordination) == "<ebla.Coordination>"
    db.drop_table("t")
    with pytest.raises(NotFound):
        db.table("t")


def test_an_error_shows_the_callers_frames_and_keeps_the_others(
    loopback: Loopback, table: ebla.Table
) -> None:
    for mistake in (
        lambda: table.upsert({"id": "one"}),
        lambda: table.upsert([{"id": "one"}]),
        lambda: table.scan(["nothing"]),
        lambda: table.insert([row(1), row(1)]),
        lambda: loopback.db.table("nothing"),
        lambda: list(loopback.db.log("nothing").read()),
    ):
        with pytest.raises(ebla.EblaError) as raised:
            mistake()
        error = raised.value
        after = [
            each for each in traceback.walk_tb(error.__traceback__) if each[0].f_code.co_filename != __file__
        ]
        assert len(after) <= 2 and all("__tracebackhide__" in frame.f_locals for frame, _ in after)
        assert len(list(traceback.walk_tb(error.full_traceback))) > len(after)


def test_a_defect_shows_all_of_its_frames(loopback: Loopback) -> None:
    async def broken() -> None:
        raise ebla.Internal("a defect")

    with pytest.raises(ebla.Internal) as raised:
        loopback.bridge.run(broken())
    assert "broken" in {frame.f_code.co_name for frame, _ in traceback.walk_tb(raised.value.__traceback__)}


def test_single_rows_of_many_threads_share_calls_beside_a_large_load(
    loopback: Loopback, table: ebla.Table
) -> None:
    started = threading.Barrier(33)

    def work(thread: int) -> None:
        started.wait()
        for at in range(20):
            assert table.upsert(row(thread * 100 + at)) == Written(1)
            assert table.get({"id": thread * 100 + at}) == row(thread * 100 + at)

    def load() -> None:
        started.wait()
        assert table.upsert(arrow(30_000, width=60, start=100_000)) == Written(30_000)

    with ThreadPoolExecutor(33) as threads:
        loading = threads.submit(load)
        list(threads.map(work, range(32)))
        loading.result()
    assert table.count() == 32 * 20 + 30_000
    assert loopback.toy.count("write") < 32 * 20


def test_closing_a_connection_ends_waiting_calls_and_refuses_later_ones(
    loopback: Loopback, table: ebla.Table
) -> None:
    waiting = threading.Event()
    loopback.toy.before[address("host-a"), "write"] = [silence()] * 9
    loopback.toy.on_call = lambda method: method == "write" and waiting.set()
    with ThreadPoolExecutor(4) as threads:
        pending = [threads.submit(table.upsert, rows(*range(at, at + 50))) for at in (0, 50, 100)]
        assert waiting.wait(10)
        loopback.db.close()
        for future in pending:
            with pytest.raises(ConnectionClosed, match=r"ebla\.connect"):
                future.result(10)
    for call in (lambda: table.get({"id": 1}), lambda: table.scan().to_arrow(), loopback.db.tables):
        with pytest.raises(ConnectionClosed, match=r"ebla\.connect"):
            call()
    loopback.db.close()
    assert repr(loopback.db) == "<ebla.Database 'toy', closed>"


def test_ctrl_c_ends_a_waiting_call_and_cancels_its_operation(loopback: Loopback, table: ebla.Table) -> None:
    loopback.toy.before[address("host-a"), "read"] = [silence()]
    loopback.toy.before[address("host-b"), "read"] = [silence()]
    main = threading.main_thread().ident
    loopback.toy.on_call = lambda method: method == "read" and signal.pthread_kill(main, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        table.get_many([{"id": n} for n in range(10)])
    loopback.toy.on_call = lambda method: None
    loopback.settle()
    assert loopback.operations() == 0, "no operation remains for the interrupted caller"
    assert table.upsert(row(1)) == Written(1)


class CtrlC:
    """Raises KeyboardInterrupt in this thread before an instruction of `Bridge._submit` or `Bridge._call`, after `left` others;
    at the end of `_submit` if it has fewer."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.at_the_end = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> CtrlC:
        if frame.f_code not in (Bridge._submit.__code__, Bridge._call.__code__):
            return self
        frame.f_trace_opcodes = True
        self.left -= event == "opcode"
        self.at_the_end = event == "return" and frame.f_code is Bridge._submit.__code__
        if self.left < 0 or self.at_the_end:
            raise KeyboardInterrupt
        return self


def interrupted_after(bridge: Bridge, instructions: int) -> CtrlC:
    """Interrupt an endless operation."""
    ctrl_c, before = CtrlC(instructions), sys.gettrace()
    endless = asyncio.Event().wait()
    sys.settrace(ctrl_c)
    try:
        with pytest.raises(KeyboardInterrupt):
            bridge.run(endless)
    finally:
        sys.settrace(before)
    return ctrl_c


def test_ctrl_c_at_any_instruction_leaves_the_connection_usable_and_cancels_the_operation() -> None:
    bridge = Bridge("toy")

    async def under_way() -> int:
        return len(bridge._waiters) - 1

    for instructions in range(1000):
        ctrl_c = interrupted_after(bridge, instructions)
        found: list[int] = []
        later = threading.Thread(
            target=lambda found=found: found.extend(bridge.run(under_way()) for _ in range(9)), daemon=True
        )
        later.start()
        later.join(10)
        assert found and found[-1] == 0, f"after {instructions} instructions"
        if ctrl_c.at_the_end:
            break
    assert ctrl_c.at_the_end and instructions > 20
    bridge.close()


def test_a_close_that_ctrl_c_interrupts_is_completed_by_another() -> None:
    bridge = Bridge("toy")
    before = sys.gettrace()
    sys.settrace(CtrlC(0))
    try:
        with pytest.raises(KeyboardInterrupt):
            bridge.close()
    finally:
        sys.settrace(before)
    bridge.close()
    assert not bridge._thread.is_alive()


def test_a_forked_child_is_asked_to_connect_by_itself(loopback: Loopback, table: ebla.Table) -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe()

    def child() -> None:
        try:
            table.get({"id": 1})
        except ConnectionClosed as error:
            sender.send(str(error))
        loopback.db.close()

    process = context.Process(target=child)
    process.start()
    assert receiver.poll(20)
    assert "does not survive a fork; call ebla.connect()" in receiver.recv()
    process.join(20)
    assert process.exitcode == 0
    assert table.upsert(row(1)) == Written(1), "the parent is not affected"


def test_a_pickled_table_connects_on_the_other_side_at_its_first_use(
    loopback: Loopback, table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ebla import link

    table.upsert(row(1))
    asked: list[tuple[str, str | None]] = []

    def shared(name: str, where: str | None) -> Link:
        asked.append((name, where))
        return loopback.link

    monkeypatch.setattr(link, "shared", shared)
    copy, db = pickle.loads(pickle.dumps((table, loopback.db)))
    assert repr(copy) == "<ebla.Table 't'>" and asked == [], "unpickling sends no request"
    assert copy.get({"id": 1}) == row(1) and repr(copy) == repr(table)
    assert asked == [("toy", "somewhere:6379")]
    assert [t.name for t in db.tables()] == ["t"] and len(asked) == 1, (
        "both were pickled together and share a database"
    )


def test_closing_a_copy_leaves_the_other_copies_connected(
    loopback: Loopback, table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ebla import link

    monkeypatch.setattr(link, "shared", lambda name, where: loopback.link)
    table.upsert(arrow(20_000, width=50))
    kept, scanned = pickle.loads(pickle.dumps(table)), pickle.loads(pickle.dumps(table))
    assert kept.get({"id": 1}) is not None
    with pickle.loads(pickle.dumps(loopback.db)) as db:
        assert db.table("t").count() == 20_000
    closed_unused = pickle.loads(pickle.dumps(loopback.db))
    closed_unused.close()
    batches = scanned.scan().batches()
    next(batches)
    assert loopback.toy.scanners
    for copy in (db, closed_unused, scanned._database):
        copy.close()
        assert repr(copy) == "<ebla.Database 'toy', closed>"
        with pytest.raises(ConnectionClosed, match=r"ebla\.connect"):
            copy.tables()
    for call in (lambda: scanned.get({"id": 1}), lambda: scanned.upsert(rows(1)), lambda: list(batches)):
        with pytest.raises(ConnectionClosed, match=r"ebla\.connect"):
            call()
    assert loopback.scanners_left() == {}, "a closed copy ends its scans"
    assert kept.get({"id": 1}) is not None and not loopback.db.closed
    assert pickle.loads(pickle.dumps(db)).table("t").count() == 20_000


def test_a_connection_that_a_defect_has_closed_is_replaced_for_later_copies(
    loopback: Loopback, table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ebla import deployment, link

    failed, data = Loopback(), pickle.dumps(table)
    monkeypatch.setattr(link, "_shared", {(os.getpid(), "toy", "somewhere:6379"): failed.link})
    monkeypatch.setattr(deployment, "reach", lambda name, address: SimpleNamespace(roles=()))
    monkeypatch.setattr(link, "make_link", lambda name, roles: loopback.link)
    failed.bridge.run(_in_loop(lambda: failed.session.failed("a background task", RuntimeError("a defect"))))
    assert failed.link.closed and not failed.bridge.closed
    assert pickle.loads(data).upsert(row(1)) == Written(1)
    assert failed.bridge.closed


async def _in_loop(act: Callable[[], None]) -> None:
    act()


def test_a_child_that_was_forked_while_the_parent_connects_may_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ebla import link

    monkeypatch.setattr(link, "_shared", {(1, "toy", None): None})
    held = link._shared_gate
    with held:
        link._in_child()
        assert not link._shared_gate.locked() and not link._shared
    link._shared_gate = held


@pytest.mark.parametrize("left", ["it = iter(t.scan()); next(it)", "kept = Late()"])
def test_a_program_may_end_with_a_half_read_scan_and_with_calls_of_its_finalisers(left: str) -> None:
    program = f"""
import pyarrow as pa
from tests.client.loopback import Loopback
loopback = Loopback()
loopback.toy.block_rows = 2
schema = pa.schema([("id", pa.int64())])
t = loopback.db.create_table("t", schema=schema, primary_key=["id"], replicas=3)
t.upsert([{{"id": number}} for number in range(100)])
class Late:
    def __del__(self, table=t):
        try:
            table.upsert([{{"id": 1}}])
        except Exception as error:
            print(type(error).__name__)
{left}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout in ("", "ConnectionClosed\n")


def test_an_exception_of_the_operation_is_raised_in_its_caller_only() -> None:
    bridge = Bridge("toy")

    async def fail() -> None:
        raise ZeroDivisionError("one")

    async def succeed() -> int:
        await asyncio.sleep(0)
        return 7

    with pytest.raises(ZeroDivisionError, match="one"):
        bridge.run(fail())
    assert bridge.run(succeed()) == 7
    bridge.close()
    with pytest.raises(ConnectionClosed):
        bridge.run(succeed())
