"""Histories as text, for people and for other checkers.

    to_json_lines     one event a line with all its fields; `read_json_lines` reads the same history
    to_edn            Jepsen's form: one operation map a line, `:value [key value]` where the operation has a key
    to_knossos        registers, one by one, in the words of Knossos' cas-register
    to_elle           registers as transactions, in the words of Elle's rw-register
    to_set            elements that are never removed, in the words of Jepsen's set-full
    to_bank           transfers and the initial balances, in the words of Jepsen's bank
    write             a file in each of these forms except the first, if the history has that form

Exports cause no false alarms: an operation that the other checker has no word for is exported as one that permits more, never
less. Porcupine has no file format of its own; its users read lines of JSON.

In EDN an answered operation repeats its argument as the value, as Jepsen expects; an answer next to an argument stands
under `:answer`. Times are nanoseconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from ebla.chaos.checkers.verdict import by_key, canonical
from ebla.chaos.history import ENDS, FAIL, INVOKE, OK, Event, History, Operation
from ebla.storage.errors import InvalidArgument

PAIRS = "pairs"  # marks in JSON a map with keys that are not text
LONG_MAX = 2**63 - 1  # EDN's integers have 64 bits, unless marked
ELEMENT = ("add", "remove")  # their key is an element, not an object of its own
KEYWORD = re.compile(r"[a-zA-Z*!_?<>=+-][a-zA-Z0-9*!_?<>=+.-]*")
REGISTER = ("read", "write", "insert", "update", "delete")  # operations of registers
REGISTERS = ("registers", "shared")  # workloads of linearizable registers
SET, BANK = "read-set", "read-bank"  # operations that mark a history of a set, and of a bank
LINES, EDN, KNOSSOS, ELLE = ".jsonl", ".edn", ".knossos.edn", ".elle.edn"
SET_EDN, BANK_EDN = ".set.edn", ".bank.edn"
KNOSSOS_DIRECTORY = "knossos"


class Keyword(str):
    """A word that EDN writes with a colon before it."""


ABSENT = Keyword("absent")


# -- JSON lines


def to_json_lines(history: History) -> str:
    """Every event with all its fields, in the order of `Event`. A map whose keys are not all text is written as
    {"pairs": [[key, value], ...]}, since JSON would turn the keys into text."""
    lines = [
        msgspec.json.encode(
            msgspec.structs.replace(event, key=_to_json(event.key), value=_to_json(event.value))
        )
        for event in history.events
    ]
    return b"".join(line + b"\n" for line in lines).decode()


def read_json_lines(text: str | Iterable[str]) -> History:
    """Read a history that `to_json_lines` wrote. Raises InvalidArgument, with the number of the line."""
    history = History()
    decoder = msgspec.json.Decoder(Event)
    for number, line in enumerate(text.split("\n") if isinstance(text, str) else text, 1):
        if not line.strip():
            continue
        try:
            event = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise InvalidArgument(f"line {number} is not an event of a history: {error}") from error
        if event.type != INVOKE and event.type not in ENDS:
            raise InvalidArgument(f"line {number}: type is {event.type!r}; use {INVOKE}, {', '.join(ENDS)}")
        if event.index != len(history):
            raise InvalidArgument(
                f"line {number}: index is {event.index}, but {len(history)} events came before; "
                "give the whole history, in its order"
            )
        value = msgspec.structs.replace(event, key=_from_json(event.key), value=_from_json(event.value))
        history.events.append(value)
        history.processes = max(history.processes, event.process + 1)
    return history


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and value.keys() != {PAIRS}:
            return {key: _to_json(each) for key, each in value.items()}
        return {PAIRS: [[_to_json(key), _to_json(each)] for key, each in value.items()]}
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {PAIRS}:
            return {_from_json(key): _from_json(each) for key, each in value[PAIRS]}
        return {key: _from_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_from_json(each) for each in value]
    return value


# -- EDN


def to_edn(history: History) -> str:
    """One map a line: every event with ebla's names."""
    lines = []
    asked: dict[int, Event] = {}
    for event in history.events:
        if event.type == INVOKE:
            asked[event.process] = event
        invoke = asked.get(event.process) if event.type == INVOKE else asked.pop(event.process, None)
        if invoke is None:
            raise InvalidArgument(f"event {event.index}: {event.type} {event.operation} has no invocation")
        lines.append(_map(event, event.index, event.type, event.operation, *_value(event, invoke)))
    return "".join(lines)


def _value(event: Event, invoke: Event) -> tuple[Any, Any]:
    if event.operation in ELEMENT:
        return event.key, event.value if event.type == OK else None
    value, answer = invoke.value, None
    if event.type == OK and invoke.value is None:
        value = event.value
    elif event.type == OK:
        answer = event.value
    return value if event.key is None else [event.key, value], answer


def _map(event: Event, index: int, type: str, word: str, value: Any, answer: Any = None) -> str:
    fields: dict[str, Any] = {
        "index": index,
        "time": event.time_us * 1000,
        "process": event.process,
        "type": Keyword(type),
        "f": Keyword(word),
        "value": value,
    }
    if answer is not None:
        fields["answer"] = answer
    if event.error is not None:
        fields["error"] = event.error
    return edn({Keyword(name): each for name, each in fields.items()}) + "\n"


def edn(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if -LONG_MAX <= value <= LONG_MAX else f"{value}N"
    if isinstance(value, float) and isfinite(value):
        return repr(value)
    if isinstance(value, Keyword):
        if not KEYWORD.fullmatch(value):
            raise InvalidArgument(
                f"operation {str(value)!r} cannot be an EDN keyword; use letters, digits and -"
            )
        return f":{value}"
    if isinstance(value, str):
        return '"' + "".join(_ESCAPES.get(letter, letter) for letter in value) + '"'
    if isinstance(value, list | tuple):
        return f"[{' '.join(edn(each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{edn(key)} {edn(each)}" for key, each in value.items()) + "}"
    raise InvalidArgument(f"{value!r} is not plain: use None, bool, int, float, str, list and dict")


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


# -- Knossos


def to_knossos(history: History) -> dict[Any, str]:
    """The operations on each register, by key, as Knossos' cas-register has them.

    It reads nil as "unknown". Absence is therefore the value `:absent`, which the first operation writes. An insert is a
    compare-and-set from `:absent`; an update or delete that changed something is a write, and one that found nothing a read
    of `:absent`.
    """
    texts = {}
    first = Event(0, 0, history.processes, INVOKE, "write")
    written: list[Line] = [(first, INVOKE, "write", ABSENT), (first, OK, "write", ABSENT)]
    for operations in by_key(history.operations(*REGISTER)).values():
        words: dict[int, Line] = {}
        for each in operations:
            word, value = _as_cas(each)
            refused = each.known and each.name == "insert" and each.answer is False
            _put(words, each, word, None if word == "read" else value, value, FAIL if refused else "")
        texts[operations[0].key] = _lines([*written, *_in_order(words)])
    return texts


def _as_cas(operation: Operation) -> tuple[str, Any]:
    """The operation's word, and its value after the answer."""
    name, argument = operation.name, operation.argument
    if name == "read":
        if not operation.known:
            return "read", None
        return "read", ABSENT if operation.answer is None else operation.answer
    if name == "insert":
        return "cas", [ABSENT, argument]
    if operation.known and operation.answer is False:
        return "read", ABSENT
    return "write", ABSENT if name == "delete" else argument


# -- Elle


def to_elle(history: History) -> str:
    """Registers as transactions of Elle's rw-register: `[[:r key value]]` and `[[:w key value]]`.

    Elle distinguishes writes by their values and has no word for a delete: a written key is never absent again. Of a key that
    may have been deleted, deletes and observations of absence are left out. The rest is right if the whole is: a read that
    finds a value finds the last one written, with or without deletes. A key to which one value was written twice is left out,
    and so is a refused insert, which says that some value was there.
    """
    words: dict[int, Line] = {}
    for operations in by_key(history.operations(*REGISTER)).values():
        values = Counter(
            canonical(each.argument) for each in operations if each.name not in ("read", "delete")
        )
        if any(count > 1 for count in values.values()):
            continue
        deleted = any(each.name == "delete" and not each.failed for each in operations)
        for operation in operations:
            steps = _as_transaction(operation, deleted)
            if not steps:
                continue
            asked = [[step, key, None if step == "r" else value] for step, key, value in steps]
            _put(words, operation, "txn", asked, steps if operation.known else asked)
    return _lines(_in_order(words))


def _as_transaction(operation: Operation, deleted: bool) -> list[list[Any]]:
    """The steps; empty for operations that Elle has no word for. `deleted`: the key may be absent again, so absence is left
    out."""
    read, write = Keyword("r"), Keyword("w")
    name, key = operation.name, operation.key
    absent = [] if deleted else [[read, key, None]]
    if name == "delete":
        return []
    if name == "read":
        found = operation.answer if operation.known else None
        return absent if operation.known and found is None else [[read, key, found]]
    if operation.known and operation.answer is False:
        return absent if name == "update" else []
    inserted = absent if operation.known and name == "insert" else []
    return [*inserted, [write, key, operation.argument]]


# -- sets and banks


def to_set(history: History) -> str:
    """Adds and reads of the whole set. Jepsen has no word for removes: elements that may have been removed are left out, and
    so are counts."""
    removed = {canonical(each.key) for each in history.operations("remove") if not each.failed}
    words: dict[int, Line] = {}
    for each in history.operations("add", SET):
        if each.name == SET:
            held = [value for value in each.answer if canonical(value) not in removed] if each.known else None
            _put(words, each, "read", None, held)
        elif canonical(each.key) not in removed:
            _put(words, each, "add", each.key, each.key)
    return _lines(_in_order(words))


def to_bank(history: History) -> str:
    """Transfers and reads. The initial balances are the first read: their sum is Jepsen's `:total-amount`."""
    words: dict[int, Line] = {}
    for each in history.operations("open", "transfer", BANK):
        if each.name == "transfer":
            moved = {Keyword(name): value for name, value in each.argument.items()}
            _put(words, each, "transfer", moved, moved)
        else:
            balances = each.argument if each.name == "open" else each.answer
            _put(words, each, "read", None, balances if each.known else None)
    return _lines(_in_order(words))


# -- in the words of others

Line = tuple[Event, str, str, Any]  # an event; its type, operation and value in the export


def _put(
    words: dict[int, Line], operation: Operation, word: str, asked: Any, ended: Any, type: str = ""
) -> None:
    """Add both events of the operation by their places. `type`: of the end, if it differs in the export."""
    words[operation.began] = operation.invoke, INVOKE, word, asked
    if (end := operation.end) is not None:
        words[end.index] = end, type or end.type, word, ended


def _in_order(words: Mapping[int, Line]) -> list[Line]:
    return [words[index] for index in sorted(words)]


def _lines(lines: Iterable[Line]) -> str:
    """The lines with new numbers."""
    return "".join(
        _map(event, index, type, word, value) for index, (event, type, word, value) in enumerate(lines)
    )


# -- files


def write(history: History, name: str, directory: Path) -> list[Path]:
    """Write EDN for every history; for a set or a bank also Jepsen's form; for registers also Elle's form and, in a directory of
    their own, one file of Knossos' form per key. `name`: the workload's, on Ray with the number of a group. Returns the paths."""
    texts = {directory / f"{name}{EDN}": to_edn(history)}
    asked = dict.fromkeys(event.operation for event in history.events)
    if SET in asked:
        texts[directory / f"{name}{SET_EDN}"] = to_set(history)
    if BANK in asked:
        texts[directory / f"{name}{BANK_EDN}"] = to_bank(history)
    if name.partition("-")[0] in REGISTERS:
        texts[directory / f"{name}{ELLE}"] = to_elle(history)
        for key, text in to_knossos(history).items():
            texts[directory / KNOSSOS_DIRECTORY / f"{name}-key-{key}{KNOSSOS}"] = text
    for path, text in texts.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return list(texts)
