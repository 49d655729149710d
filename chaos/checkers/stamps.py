"""Groups of rows that one atomic batch after another stamps with a growing value: never torn, never older.

    stamp         key = the group, value v: all its rows are v
    read-stamps   key = the group, value = None -> the values of its rows in one snapshot; an empty list before the first stamp
                  value = v: only values up to v are asked for -> these; an empty list while the value is greater

Each group has one writer with growing values. After the next acknowledged stamp, an earlier one with an unknown outcome cannot
take place any more. So in every read all values are equal. The value is not older than the newest stamp that was acknowledged
before the read began, not older than the value of any read that ended before, and was attempted before the read ended. A read with
a bound that shows nothing after the first stamp proves a greater value, which was attempted before the read ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

from ebla.chaos.checkers.verdict import (
    Problem,
    Recorded,
    Verdict,
    brief,
    broken,
    by_key,
    canonical,
    described,
    listed,
    nothing,
    operations_of,
    together,
)
from ebla.chaos.history import Operation
from ebla.storage.errors import InvalidArgument

STAMP, READ = "stamp", "read-stamps"
NAMES = (STAMP, READ)


def check_stamp(recorded: Recorded, rows: int | None = None) -> Verdict:
    """`rows`: of each group; by default the number that its longest read shows."""
    groups = by_key(operations_of(recorded, NAMES))
    verdicts = [_check_group(operations, rows) for operations in groups.values()]
    if not verdicts:
        return nothing("no group was used")
    return together([each for each in verdicts if each.judged] or verdicts, "groups")


def _check_group(operations: Sequence[Operation], rows: int | None) -> Verdict:
    stamps = [each for each in operations if each.name == STAMP]
    reads = [each for each in operations if each.name == READ and each.known]
    _check_growth([each for each in stamps if not each.failed])
    if not reads:
        return nothing(f"no read of group {operations[0].key!r} was answered")
    judged = len(reads) + sum(each.known for each in stamps)
    for read in reads:
        if not isinstance(read.answer, list | tuple):
            raise InvalidArgument(f"{described(read)}: the answer must be the list of the rows' values")
    size = rows if rows is not None else max(len(read.answer) for read in reads)
    rules = (_torn(reads, size), _beyond(reads), _impossible(stamps, reads), _older(stamps, reads))
    problem = next(chain.from_iterable(rules), None)
    return broken(*problem, judged) if problem else Verdict(True, judged=judged)


def _check_growth(stamps: Sequence[Operation]) -> None:
    for earlier, later in pairwise(stamps):
        if not earlier.argument < later.argument:
            raise InvalidArgument(
                f"{described(later)} follows {described(earlier)}: the stamps of a group must grow"
            )


def _seen(read: Operation) -> Any:
    """The value that a whole read shows; None before the first stamp."""
    return read.answer[0] if read.answer else None


# -- the rules, the simplest to tell first


def _torn(reads: Sequence[Operation], size: int) -> Iterator[Problem]:
    for read in reads:
        values = list(dict.fromkeys(map(canonical, read.answer)))
        if len(values) > 1:
            yield f"group {read.key!r} is torn: {brief(read)} shows {listed(values)} in one snapshot", [read]
        if len(read.answer) not in (0, size):
            shows = f"{brief(read)} shows {len(read.answer)} of {size} rows"
            yield f"group {read.key!r} is torn: {shows} in one snapshot", [read]


def _beyond(reads: Sequence[Operation]) -> Iterator[Problem]:
    """No read shows a value above its bound."""
    for read in reads:
        seen = _seen(read)
        if seen is not None and read.argument is not None and seen > read.argument:
            asked = f"asked for values up to {read.argument!r}"
            yield f"{brief(read)} shows {seen!r} in group {read.key!r}, and {asked}", [read]


def _impossible(stamps: Sequence[Operation], reads: Sequence[Operation]) -> Iterator[Problem]:
    """Every value that is read was attempted before, by a stamp that did not surely fail."""
    attempted = {each.argument: each for each in stamps if not each.failed}
    failed = {each.argument: each for each in stamps if each.failed}
    for read in reads:
        value = _seen(read)
        if value is None:
            continue
        stamp = attempted.get(value)
        if stamp is None and value in failed:
            why = f"{described(failed[value])} surely did not take place"
            yield f"{brief(read)} shows {value!r} in group {read.key!r}, but {why}", [failed[value], read]
        elif stamp is None:
            yield f"{brief(read)} shows {value!r} in group {read.key!r}, which was never written", [read]
        elif stamp.began > (read.ended or 0):
            yield f"{brief(read)} shows {value!r} before {described(stamp)} began", [stamp, read]


def _older(stamps: Sequence[Operation], reads: Sequence[Operation]) -> Iterator[Problem]:
    """No read is older than a value that was acknowledged, or read, before it began."""
    proofs = [(each.ended or 0, each.argument, each) for each in stamps if each.known]
    proofs += [(each.ended or 0, _seen(each), each) for each in reads if _seen(each) is not None]
    first = min((proof[0] for proof in proofs), default=None)
    for read in reads:
        if _seen(read) is None and read.argument is not None and first is not None and first < read.began:
            greater = _attempted_above(read, stamps)
            if greater is not None:  # the least value that the group may have had
                proofs.append((read.ended or 0, greater, read))
    proofs.sort(key=lambda proof: proof[0])
    newest: list[tuple[int, Any, Operation]] = []  # each newer than those before it
    for proof in proofs:
        if not newest or newest[-1][1] < proof[1]:
            newest.append(proof)
    for read in reads:
        before = bisect_left(newest, read.began, key=lambda proof: proof[0])
        if not before:
            continue
        _, value, proof_of = newest[before - 1]
        seen = _seen(read)
        hidden = seen is None and read.argument is not None and _attempted_above(read, stamps) is not None
        if not hidden and (seen is None or seen < value):
            what = _proof(proof_of, value)
            yield (
                f"{brief(read)} shows {seen!r} in group {read.key!r}, but {what} ended before that began",
                [proof_of, read],
            )


def _attempted_above(read: Operation, stamps: Sequence[Operation]) -> Any:
    """The least value above the bound of a read that was attempted before the read ended."""
    return next(
        (
            each.argument
            for each in stamps
            if not each.failed and each.argument > read.argument and each.began < (read.ended or 0)
        ),
        None,
    )


def _proof(of: Operation, value: Any) -> str:
    if of.name == STAMP:
        return described(of)
    return f"{brief(of)} showed {value!r}{' or more' if _seen(of) is None else ''}, which"
