"""Exported sets and banks have the recorded events in the form of Jepsen's checkers."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.chaos.checkers.bank import check_bank
from ebla.chaos.checkers.sets import check_set
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.export import read_json_lines, to_bank, to_edn, to_json_lines, to_set, write
from ebla.chaos.history import OK, History
from ebla.chaos.plans import Plan
from ebla.chaos.runs import Run
from ebla.chaos.scenarios.scenarios import scenario
from tests.chaos.checkers.edn_reader import Keyword
from tests.chaos.checkers.histories import Play, Script, a_set, changed
from tests.chaos.checkers.test_export import words
from tests.chaos.checkers.test_sets import draw_set


def as_history(text: str, names: dict[str, str], key_of: str = "") -> History:
    """The exported events as a history of ours."""
    history = History()
    for each in words(text):
        name = names[str(each["f"])]
        key, value = (each["value"], True) if name == key_of else (None, each["value"])
        answer = value if each["type"] == Keyword("ok") or name == "transfer" else None
        history.note(
            each["time"] / 1e9, each["process"], str(each["type"]), name, key, answer, each.get("error")
        )
    return history


def judged_set(text: str) -> Verdict:
    return check_set(as_history(text, {"add": "add", "read": "read-set"}, "add"))


def judged_bank(text: str) -> Verdict:
    """The first read has the initial balances."""
    plain = text.replace("{:from", '{"from"').replace(", :to ", ', "to" ').replace(", :amount", ', "amount"')
    history = as_history(plain, {"transfer": "transfer", "read": "read-bank"})
    return check_bank(history, next(event.value for event in history.events if event.type == OK))


def test_sets_are_exported_for_jepsens_checker() -> None:
    h = Script()
    h.did(0, "add", 7, answer=True)
    h.did(0, "add", "taken away", answer=True)
    h.did(1, "count", answer=2)
    h.begin(2, "remove", "taken away")
    h.did(0, "read-set", answer=[7, "taken away"])
    h.info(2)
    h.begin(0, "add", 8)
    h.fail(0)
    h.did(0, "add", "kept", answer=True)
    h.begin(0, "remove", "kept")
    h.fail(0)
    h.begin(0, "read-set")
    h.fail(0)
    add, read = Keyword("add"), Keyword("read")
    events = words(to_set(h.history))
    assert [(str(each["type"]), each["f"], each["value"]) for each in events] == [
        ("invoke", add, 7),
        ("ok", add, 7),
        ("invoke", read, None),
        ("ok", read, [7]),
        ("invoke", add, 8),
        ("fail", add, 8),
        ("invoke", add, "kept"),
        ("ok", add, "kept"),
        ("invoke", read, None),
        ("fail", read, None),
    ]
    assert [each["index"] for each in events] == list(range(10))
    assert [each.get("error") for each in events if each["type"] == Keyword("fail")] == ["refused"] * 2


def test_banks_are_exported_for_jepsens_checker_with_first_balances() -> None:
    h = Script.of(
        "0 open None {1:10,2:10}; 1 transfer None {'from':1,'to':2,'amount':3}; 2 read-bank !;"
        " 1 read-bank -> {1: 7, 2: 13}"
    )
    assert to_bank(h.history).splitlines()[:4] == [
        "{:index 0, :time 0, :process 0, :type :invoke, :f :read, :value nil}",
        "{:index 1, :time 1000000, :process 0, :type :ok, :f :read, :value {1 10, 2 10}}",
        "{:index 2, :time 2000000, :process 1, :type :invoke, :f :transfer, :value {:from 1, :to 2, :amount 3}}",
        "{:index 3, :time 3000000, :process 1, :type :ok, :f :transfer, :value {:from 1, :to 2, :amount 3}}",
    ]
    events = words(to_bank(h.history))[4:]
    assert [(str(each["type"]), each["f"], each["value"]) for each in events] == [
        ("invoke", Keyword("read"), None),
        ("fail", Keyword("read"), None),
        ("invoke", Keyword("read"), None),
        ("ok", Keyword("read"), {1: 7, 2: 13}),
    ]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.2]))
def test_correct_sets_are_accepted_and_each_lost_element_is_found(seed: int, unknown: float) -> None:
    history = Play(seed, a_set, frozenset(), draw_set, unknown).run(slots=4, count=40)
    judged = judged_set(to_set(history))
    assert judged.valid is (None if judged.judged == 0 else True)
    kept = {event.key for event in history.events if event.type == OK and event.operation == "add"}
    kept -= {event.key for event in history.events if event.operation == "remove"}
    reads = [event for event in history.events if event.type == OK and event.operation == "read-set"]
    removed = any(event.operation == "remove" for event in history.events)
    if reads and not removed and (lost := kept & set(reads[-1].value)):
        without = [value for value in reads[-1].value if value != min(lost)]
        broken = changed(history, reads[-1].index, without)
        assert judged_set(to_set(broken)).valid is check_set(broken).valid


def test_a_run_exports_the_answers_of_its_clients(tmp_path: Path) -> None:
    """The exported history for other checkers: only operations that they know, and the initial balances."""
    run = Run(scenario("calm"), Plan("calm", 3, ()))
    assert run.go().violation == ""
    for name in ("tokens", "churn", "bank"):
        history = run.histories[name]
        texts = {path.name: path.read_text() for path in write(history, name, tmp_path)}
        assert read_json_lines(to_json_lines(history)) == history
        assert words(texts.pop(f"{name}.edn")) == words(to_edn(history))
        ((file, text),) = texts.items()
        known = {"set": {"add", "read"}, "bank": {"transfer", "read"}}[file.split(".")[1]]
        assert {str(each["f"]) for each in words(text)} == known
        judged = judged_bank(text) if name == "bank" else judged_set(text)
        assert judged.valid is True and judged.judged > 0
    assert words(to_bank(run.histories["bank"]))[1]["value"] == dict.fromkeys(range(4), 100)
