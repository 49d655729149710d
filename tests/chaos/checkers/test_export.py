"""Exported histories have the recorded events in the form that other checkers expect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.chaos.checkers.linearizability import REFUSED, UNKNOWN, Call, linearize
from ebla.chaos.checkers.register import check_register
from ebla.chaos.checkers.verdict import canonical
from ebla.chaos.export import (
    REGISTERS,
    edn,
    read_json_lines,
    to_edn,
    to_elle,
    to_json_lines,
    to_knossos,
    write,
)
from ebla.chaos.history import FAIL, INFO, INVOKE, OK, Event, History, pair
from ebla.chaos.ray import shared
from ebla.chaos.workloads.registers import Registers
from ebla.storage.errors import InvalidArgument
from tests.chaos.checkers.edn_reader import Keyword, read_edn
from tests.chaos.checkers.histories import Play, Script, changed, draw_register, register

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8) | st.floats(-1e6, 1e6)
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.just("pairs"), inner, max_size=3)
        | st.dictionaries(st.integers(-99, 99) | st.none() | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def words(text: str) -> list[dict[str, Any]]:
    """The maps of an EDN text, with their keywords as text keys."""
    return [{str(key): value for key, value in each.items()} for each in read_edn(text)]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """A history that `pair` accepts, with arbitrary values and errors."""
    history, asked = History(), {}
    for _ in range(draw(st.integers(0, 12))):
        process = draw(st.integers(0, 3))
        time_s = len(history) * 0.125
        if process in asked:
            name, key = asked.pop(process)
            type = draw(st.sampled_from([OK, FAIL, INFO]))
            error = draw(st.none() | st.text(max_size=9))
            history.note(time_s, process, type, name, key, draw(PLAIN), error)
        else:
            asked[process] = name, key = draw(st.sampled_from(["read", "write", "read-set"])), draw(PLAIN)
            history.note(time_s, process, INVOKE, name, key, draw(PLAIN))
        history.processes = max(history.processes, process + 1)
    return history


# -- JSON lines


@settings(max_examples=100, deadline=None)
@given(histories())
def test_json_lines_keep_a_history_unchanged(history: History) -> None:
    back = read_json_lines(to_json_lines(history))
    assert repr(back) == repr(history), "True, 1 and 1.0 stay different"
    assert back == history


def test_a_json_line_is_one_event_with_all_fields() -> None:
    h = Script()
    h.begin(0, "write", "k", 5)
    h.info(0)
    first, second = [json.loads(line) for line in to_json_lines(h.history).splitlines()]
    assert list(first) == ["index", "time_us", "process", "type", "operation", "key", "value", "error"]
    assert list(first.values()) == [0, 0, 0, "invoke", "write", "k", 5, None]
    assert list(second.values()) == [1, 1000, 0, "info", "write", "k", 5, "no answer"]


def test_json_lines_can_be_read_from_a_file() -> None:
    h = Script()
    h.did(0, "read-bank", answer={1: 5, 2: 7})
    text = to_json_lines(h.history)
    assert '{"pairs":[[1,5],[2,7]]}' in text, "JSON itself has no maps from numbers"
    assert read_json_lines(iter(text.splitlines(keepends=True))) == h.history


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nonsense", "line 2 is not an event"),
        ('{"index": 1, "time_us": 0, "process": 0, "type": "ok"}', "line 2 is not an event.*operation"),
        (
            '{"index": 1, "time_us": 0, "process": 0, "type": "done", "operation": "read"}',
            "line 2: type is 'done'; use invoke, ok, fail, info",
        ),
        (
            '{"index": 4, "time_us": 0, "process": 0, "type": "ok", "operation": "read"}',
            "line 2: index is 4, but 1 events came before",
        ),
    ],
)
def test_an_invalid_line_is_refused_with_its_number(line: str, reason: str) -> None:
    first = '{"index": 0, "time_us": 0, "process": 0, "type": "invoke", "operation": "read"}'
    with pytest.raises(InvalidArgument, match=reason):
        read_json_lines(f"{first}\n{line}\n")


# -- EDN


def test_keyed_operations_have_tuples_of_key_and_value() -> None:
    h = Script.of("0 write k 5; 1 read k -> 5")
    assert to_edn(h.history) == (
        '{:index 0, :time 0, :process 0, :type :invoke, :f :write, :value ["k" 5]}\n'
        '{:index 1, :time 1000000, :process 0, :type :ok, :f :write, :value ["k" 5]}\n'
        '{:index 2, :time 2000000, :process 1, :type :invoke, :f :read, :value ["k" nil]}\n'
        '{:index 3, :time 3000000, :process 1, :type :ok, :f :read, :value ["k" 5]}\n'
    )


def test_an_answer_is_kept_beside_the_argument() -> None:
    h = Script.of("0 insert k 5 -> False; 0 insert k 6 ?")
    events = words(to_edn(h.history))
    assert [(each["value"], each.get("answer"), each.get("error")) for each in events] == [
        (["k", 5], None, None),
        (["k", 5], False, None),
        (["k", 6], None, None),
        (["k", 6], None, "no answer"),
    ]


@settings(max_examples=200, deadline=None)
@given(PLAIN)
def test_edn_keeps_plain_values(value: Any) -> None:
    assert repr(read_edn(edn(value))) == repr([value])


@settings(max_examples=50, deadline=None)
@given(histories())
def test_every_event_is_one_map_in_edn(history: History) -> None:
    events = words(to_edn(history))
    assert [(each["index"], each["process"], each["type"]) for each in events] == [
        (event.index, event.process, Keyword(event.type)) for event in history.events
    ]
    assert [each["time"] for each in events] == [event.time_us * 1000 for event in history.events]


def test_values_that_are_not_plain_cannot_be_exported() -> None:
    for value in ({1}, b"bytes", float("inf")):
        with pytest.raises(InvalidArgument, match="is not plain"):
            edn(value)
    with pytest.raises(InvalidArgument, match="'two words' cannot be an EDN keyword"):
        to_edn(History([Event(0, 0, 0, INVOKE, "two words")]))
    with pytest.raises(InvalidArgument, match="event 0: ok read has no invocation"):
        to_edn(History([Event(0, 0, 0, OK, "read")]))
    assert edn(2**70) == f"{2**70}N"


# -- Knossos


def cas_register(text: str) -> bool | None:
    """Judge as Knossos does: the answer's value replaces that of the invocation, failures are dropped, nil matches."""
    events = []
    for each in words(text):
        value = canonical(each["value"])
        events.append(
            Event(
                each["index"], each["time"], each["process"], str(each["type"]), str(each["f"]), None, value
            )
        )

    def read(state: Any, argument: Any, answer: Any) -> Any:
        return state if argument is None or argument == state else REFUSED

    def write(state: Any, argument: Any, answer: Any) -> Any:
        return argument

    def cas(state: Any, argument: Any, answer: Any) -> Any:
        _, (old, new) = argument
        return new if state == old else state if answer is UNKNOWN else REFUSED

    steps = {"read": read, "write": write, "cas": cas}
    calls = []
    for operation in pair(events):
        if operation.failed or (operation.name == "read" and not operation.known):
            continue
        argument = operation.answer if operation.known else operation.argument
        answer = None if operation.known else UNKNOWN
        calls.append(Call(steps[operation.name], argument, answer, operation.name == "read", operation))
    return linearize(calls, None).found


def test_absence_is_exported_as_a_value_for_knossos() -> None:
    h = Script.of(
        "0 read k; 0 insert k 1 -> True; 0 insert k 2 -> False; 0 update k 3 -> True;"
        " 0 delete k -> True; 0 delete k -> False; 0 read other"
    )
    lines = to_knossos(h.history)["k"].splitlines()
    assert lines[0] == "{:index 0, :time 0, :process 1, :type :invoke, :f :write, :value :absent}"
    absent = Keyword("absent")
    ends = [(each["type"], each["f"], each["value"]) for each in words("\n".join(lines))[3::2]]
    assert ends == [
        (Keyword("ok"), Keyword("read"), absent),
        (Keyword("ok"), Keyword("cas"), [absent, 1]),
        (Keyword("fail"), Keyword("cas"), [absent, 2]),
        (Keyword("ok"), Keyword("write"), 3),
        (Keyword("ok"), Keyword("write"), absent),
        (Keyword("ok"), Keyword("read"), absent),
    ]
    assert [each["index"] for each in words("\n".join(lines))] == list(range(14))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.2]))
def test_knossos_accepts_every_correct_history(seed: int, unknown: float) -> None:
    history = Play(seed, register, {}, draw_register(2, 4), unknown).run(slots=4, count=30)
    assert check_register(history).valid is True
    texts = to_knossos(history)
    assert set(texts) == {event.key for event in history.events}
    assert all(cas_register(text) is True for text in texts.values())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_knossos_finds_every_wrong_read_that_our_checker_finds(seed: int) -> None:
    history = Play(seed, register, {}, draw_register(1, 4, ("read", "write")), 0.1).run(slots=4, count=30)
    reads = [event for event in history.events if event.type == OK and event.operation == "read"]
    if reads:
        history = changed(history, reads[-1].index, seed % 5)
        assert check_register(history).valid == cas_register(to_knossos(history)[0])


# -- Elle


def test_registers_are_exported_as_transactions_for_elle() -> None:
    h = Script.of(
        "0 insert k 1 -> True; 0 insert k 2 -> False; 0 read k -> 1; 0 update x 3 -> False; 0 write k 4 ?"
    )
    assert to_elle(h.history).splitlines()[:2] == [
        '{:index 0, :time 0, :process 0, :type :invoke, :f :txn, :value [[:r "k" nil] [:w "k" 1]]}',
        '{:index 1, :time 1000000, :process 0, :type :ok, :f :txn, :value [[:r "k" nil] [:w "k" 1]]}',
    ]
    read, write = Keyword("r"), Keyword("w")
    events = words(to_elle(h.history))
    assert [(each["type"], each["value"]) for each in events[2:]] == [
        (Keyword("invoke"), [[read, "k", None]]),
        (Keyword("ok"), [[read, "k", 1]]),
        (Keyword("invoke"), [[read, "x", None]]),
        (Keyword("ok"), [[read, "x", None]]),
        (Keyword("invoke"), [[write, "k", 4]]),
        (Keyword("info"), [[write, "k", 4]]),
    ]
    assert [each["index"] for each in events] == list(range(8))


def test_the_export_for_elle_omits_events_it_cannot_express() -> None:
    h = Script.of(
        "0 write twice 1; 0 write twice 1; 0 read deleted; 0 insert deleted 2 -> True;"
        " 0 delete deleted -> True; 0 update deleted 3 -> False; 0 read deleted; 0 write deleted 4;"
        " 0 read deleted -> 4"
    )
    read, write = Keyword("r"), Keyword("w")
    events = words(to_elle(h.history))
    assert [each["value"] for each in events if each["type"] == Keyword("ok")] == [
        [[write, "deleted", 2]],
        [[write, "deleted", 4]],
        [[read, "deleted", 4]],
    ]
    assert [each["index"] for each in events] == list(range(6))


def rw_registers(text: str) -> bool | None:
    """Whether the transactions of every key have a strict order, as Elle sees them: nil was never written."""
    judged = []
    keyed: dict[Any, list[Event]] = {}
    for each in words(text):
        assert each["f"] == Keyword("txn")
        steps = tuple((str(step), canonical(value)) for step, _, value in each["value"])
        assert {step for step, _ in steps} <= {"r", "w"}
        keyed.setdefault(each["value"][0][1], []).append(
            Event(each["index"], each["time"], each["process"], str(each["type"]), "txn", None, steps)
        )

    def carried_out(state: Any, argument: Any, answer: Any) -> Any:
        for step, value in argument:
            if step == "r" and answer is not UNKNOWN and value != state:
                return REFUSED
            state = value if step == "w" else state
        return state

    for events in keyed.values():
        calls = [
            Call(
                carried_out,
                each.answer if each.known else each.argument,
                None if each.known else UNKNOWN,
                False,
                each,
            )
            for each in pair(events)
            if not each.failed
        ]
        judged.append(linearize(calls, None).found)
    return all(judged)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.2]))
def test_elle_accepts_every_correct_history(seed: int, unknown: float) -> None:
    history = Play(seed, register, {}, draw_register(2), unknown).run(slots=4, count=30)
    assert check_register(history).valid is True
    assert rw_registers(to_elle(history)) is True


def test_elle_finds_a_stale_read_of_a_deleted_key() -> None:
    h = Script.of("0 write k 1; 0 delete k -> True; 0 write k 2")
    assert rw_registers(to_elle(h.history)) is True
    h.did(0, "read", "k", answer=1)
    assert rw_registers(to_elle(h.history)) is False


# -- files


def test_registers_are_exported_for_every_checker_and_other_workloads_as_edn(tmp_path: Path) -> None:
    assert {Registers.name, shared.NAME} == set(REGISTERS)
    h = Script.of("0 insert 3 1 -> True; 0 read 7")
    written = write(h.history, "registers-2", tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in written] == [
        "registers-2.edn",
        "registers-2.elle.edn",
        "knossos/registers-2-key-3.knossos.edn",
        "knossos/registers-2-key-7.knossos.edn",
    ]
    texts = [path.read_text() for path in written]
    assert texts == [to_edn(h.history), to_elle(h.history), *to_knossos(h.history).values()]
    assert [path.name for path in write(h.history, "pulse", tmp_path)] == ["pulse.edn"]
