"""Registers: every key is an object of its own, and its reads and writes are linearizable.

    read        -> the value, or None if the key is absent
    write v     sets v, present or not
    insert v    -> True: was absent, is v now      False: was present, unchanged
    update v    -> True: was present, is v now     False: was absent, unchanged
    delete      -> True: was present, is absent    False: was absent, unchanged

Keys begin absent. Each key is judged alone, which is exact: linearizability is local.

The replicated log may show the outcome of unknown writes. `order` maps the invocation's index of a write to its position in the
log, or to None if the log shows that it was never applied. Writes with positions take place in the order of their positions;
those that are not in `order` may take place at any position.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ebla.chaos.checkers.linearizability import (
    ANY,
    REFUSED,
    STEPS_MAX,
    UNKNOWN,
    Call,
    Linearization,
    Step,
    linearize,
)
from ebla.chaos.checkers.verdict import (
    Recorded,
    Verdict,
    broken,
    by_key,
    canonical,
    described,
    joined,
    nothing,
    operations_of,
    places,
    together,
)
from ebla.chaos.history import Operation
from ebla.storage.errors import InvalidArgument

ABSENT = None  # as reads show it
OTHER = ("other", "a value that was never read")  # such values are treated as one: no read distinguishes them
Order = Mapping[int, int | None]
NO_ORDER: Order = MappingProxyType({})


def check_register(recorded: Recorded, order: Order = NO_ORDER, steps_max: int = STEPS_MAX) -> Verdict:
    """Judge each key's operations. `steps_max` bounds the search for each key."""
    keyed = by_key(each for each in operations_of(recorded, STEPS) if not each.failed)
    verdicts = [check_key(operations, order, steps_max) for operations in keyed.values()]
    if not verdicts:
        return nothing("no register was used")
    return together([each for each in verdicts if each.judged] or verdicts, "keys")


def check_key(
    operations: Iterable[Operation], order: Order = NO_ORDER, steps_max: int = STEPS_MAX
) -> Verdict:
    """Judge operations of one key, none of which failed."""
    candidates = [each for each in operations if each.known or each.name != "read"]
    judged = sum(each.known for each in candidates)
    if not judged:
        return nothing("no operation on the key was answered")
    never = [each for each in candidates if order.get(each.began, 0) is None]
    for each in never:
        if each.known and not _observes(each):
            return broken(
                f"key {each.key!r}: {described(each)} was acknowledged, but the log shows that it was never applied",
                [each],
                judged,
            )
    remaining = [each for each in candidates if each.known or each not in never]
    source = _from_nowhere(remaining)
    if source:
        return broken(f"key {source[-1].key!r}: {described(source[-1])} {_nowhere(source)}", source, judged)
    calls = _calls(remaining, order)
    result = linearize(calls, ABSENT, steps_max)
    if result.found:
        return Verdict(True, judged=judged)
    key = candidates[0].key
    if result.found is None:
        problem = f"key {key!r}: undecided after {result.steps} steps over {len(calls)} operations"
        return Verdict(None, problem, judged=judged)
    return Verdict(False, f"key {key!r}: {_story(result, judged)}", _where(result), judged)


def _from_nowhere(operations: Iterable[Operation]) -> list[Operation]:
    """A read of a value whose first write began after the read ended: that write and the read; only the read if the value was
    never written."""
    first: dict[Hashable, Operation] = {}
    for each in operations:
        if each.name in ("write", "insert", "update"):
            first.setdefault(canonical(each.argument), each)
    for each in operations:
        if each.name == "read" and each.answer is not None:
            source = first.get(canonical(each.answer))
            if source is None or source.began > (each.ended or 0):
                return [source, each] if source else [each]
    return []


# -- the model


def _read(state: Hashable, argument: Hashable, answer: Hashable) -> Any:
    return state if answer == state else REFUSED


def _write(state: Hashable, argument: Hashable, answer: Hashable) -> Any:
    return argument


def _insert(state: Hashable, argument: Hashable, answer: Hashable) -> Any:
    if answer is UNKNOWN or answer is (state is ABSENT):
        return argument if state is ABSENT else state
    return REFUSED


def _update(state: Hashable, argument: Hashable, answer: Hashable) -> Any:
    if answer is UNKNOWN or answer is (state is not ABSENT):
        return state if state is ABSENT else argument
    return REFUSED


def _delete(state: Hashable, argument: Hashable, answer: Hashable) -> Any:
    return ABSENT if answer is UNKNOWN or answer is (state is not ABSENT) else REFUSED


STEPS: dict[str, Step] = {
    "read": _read,
    "write": _write,
    "insert": _insert,
    "update": _update,
    "delete": _delete,
}


def _observes(operation: Operation) -> bool:
    """Whether a known operation changed nothing."""
    return operation.name == "read" or operation.answer is False


# -- from operations to calls


def _calls(operations: list[Operation], order: Order) -> list[Call]:
    read = {canonical(each.answer): None for each in operations if each.name == "read"}
    calls = []
    for each in operations:
        argument, answer = _argument(each, read), _answer(each)
        calls.append(
            Call(
                STEPS[each.name],
                argument,
                answer,
                observes=each.known and _observes(each),
                operation=each,
                position=None if each.name == "read" else order.get(each.began),
                wants=answer if each.name == "read" else ANY,
                makes=argument,
            )
        )
    return calls


def _argument(operation: Operation, read: Mapping[Hashable, None]) -> Hashable:
    if operation.name in ("read", "delete"):
        return None
    if operation.argument is None:
        raise InvalidArgument(
            f"{described(operation)}: a register never holds None, which means absence; write another value"
        )
    value = canonical(operation.argument)
    return value if value in read else OTHER


def _answer(operation: Operation) -> Hashable:
    if not operation.known:
        return UNKNOWN
    if operation.name == "read":
        return canonical(operation.answer)
    if operation.name != "write" and not isinstance(operation.answer, bool):
        raise InvalidArgument(f"{described(operation)}: the answer must be True or False")
    return None if operation.name == "write" else operation.answer


# -- the story


def _story(result: Linearization, judged: int) -> str:
    state = "absent" if result.state is ABSENT else OTHER[1] if result.state == OTHER else repr(result.state)
    after = f", after {described(result.last.operation)}" if result.last else ""
    first, *others = [described(call.operation) for call in result.stuck]
    also = f", nor can {joined(others)}" if others else ""
    kept = ""
    if result.kept_for is not None and result.kept_for not in result.stuck:
        kept = f": {described(result.kept_for.operation)} still has to see the value, which is never written again"
    return (
        f"no order explains the answers; the longest attempt explains {result.taken} of {judged} and leaves the key "
        f"{state}{after}; then {first} cannot follow{also}{kept}"
    )


def _nowhere(source: list[Operation]) -> str:
    if len(source) == 1:
        return "reads a value that was never written"
    return f"reads a value before {described(source[0])} began, the first to write it"


def _where(result: Linearization) -> tuple[int, ...]:
    shown = (result.last, *result.stuck, result.kept_for)
    return places(call.operation for call in shown if call)
