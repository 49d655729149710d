"""A log: records at positions, appended by one writer at a time.

    append     key = a fresh record; its answer is the position
    read-log   key = the first position, None for the first that is kept; its answer is [position, records]
    trim       key = a position; records before it are deleted

Promises, each judged over the whole history:

    placed      a record is at one position, the same for its writer and for every reader, and each position has one record
    kept        a record that was acknowledged, or read, before a read began is in the read, if the read reaches to its position
    complete    a read reaches to every record that was acknowledged, or read, before it began
    ordered     a record that was acknowledged before another one was appended has the lower position
    trimmed     a read from the first position that is kept on leaves out only records before a position that a trim was asked for, and
                records that were appended longer ago than the log's retention
    attempted   only records that were appended are read, and none that surely was not
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ebla.chaos.checkers.verdict import Recorded, Verdict, broken, described, nothing, operations_of
from ebla.chaos.history import Operation

APPEND, READ, TRIM = "append", "read-log", "trim"


class _Broken(Exception):
    def __init__(self, problem: str, *operations: Operation) -> None:
        super().__init__(problem)
        self.problem, self.operations = problem, operations


@dataclass
class _Log:
    """The evidence of the operations so far, in the order of their ends."""

    appends: dict[object, Operation]
    trims: Sequence[Operation]
    records: dict[int, tuple[object, Operation]] = field(default_factory=dict)  # by position, first shown by
    positions: dict[object, int] = field(default_factory=dict)

    def place(self, position: int, record: object, shown: Operation) -> None:
        append = self.appends.get(record)
        if append is None:
            raise _Broken(f"{described(shown)} shows record {record!r}, which nobody appended", shown)
        if append.failed:
            raise _Broken(
                f"{described(shown)} shows record {record!r}, whose append surely failed", append, shown
            )
        there, first = self.records.setdefault(position, (record, shown))
        if there != record:
            raise _Broken(f"position {position} has record {there!r}, and then {record!r}", first, shown)
        known = self.positions.setdefault(record, position)
        if known != position:
            raise _Broken(f"record {record!r} is at position {known} and at {position}", append, shown)

    def judge_start(self, read: Operation, first: int, retain_s: float | None) -> None:
        """`first`: the first position that is kept, as the read shows."""
        asked = max((each.key for each in self.trims if each.began < (read.ended or 0)), default=0)
        if first <= asked:
            return
        if retain_s is None:
            raise _Broken(
                f"{described(read)} begins at position {first}, and no trim asked for more than {asked}", read
            )
        read_us = read.end.time_us if read.end is not None else 0
        for position in range(asked, first):
            record, _ = self.records.get(position, (None, read))
            append = self.appends.get(record)
            if append is not None and read_us - append.invoke.time_us < retain_s * 1e6:
                raise _Broken(
                    f"{described(read)} begins at position {first}, and record {record!r} before it is younger than {retain_s:g} s",
                    append,
                    read,
                )


def check_log(recorded: Recorded, retain_s: float | None = None) -> Verdict:
    operations = operations_of(recorded, (APPEND, READ, TRIM))
    known = sorted(
        (each for each in operations if each.known and each.name != TRIM), key=lambda each: each.ended or 0
    )
    if not any(each.name == READ for each in known):
        return nothing("no read of the log was answered")
    try:
        _judge(operations, known, retain_s)
    except _Broken as error:
        return broken(error.problem, error.operations, len(known))
    return Verdict(True, judged=len(known))


def _judge(operations: Sequence[Operation], known: Sequence[Operation], retain_s: float | None) -> None:
    log = _Log(
        {each.key: each for each in operations if each.name == APPEND},
        [each for each in operations if each.name == TRIM],
    )
    shown_by: list[
        tuple[int, int, Operation]
    ] = []  # when an operation ended, the greatest position that it showed
    for each in known:
        if each.name == APPEND:
            log.place(each.answer, each.key, each)
            shown_by.append((each.ended or 0, each.answer, each))
            continue
        first, records = each.answer
        if each.key is None:
            log.judge_start(each, first, retain_s)
        for position, record in enumerate(records, first):
            log.place(position, record, each)
        if records:
            shown_by.append((each.ended or 0, first + len(records) - 1, each))
    _judge_times(known, shown_by)


def _judge_times(known: Sequence[Operation], shown_by: Sequence[tuple[int, int, Operation]]) -> None:
    """Complete and ordered: compare each operation with those that had ended before it began."""
    begun = sorted(known, key=lambda each: each.began)
    latest, highest, at = None, -1, 0
    for each in begun:
        while at < len(shown_by) and shown_by[at][0] < each.began:
            if shown_by[at][1] > highest:
                highest, latest = shown_by[at][1], shown_by[at][2]
            at += 1
        if latest is None:
            continue
        if each.name == APPEND and each.answer <= highest:
            raise _Broken(
                f"{described(each)} began after position {highest} was shown, and got position {each.answer}",
                latest,
                each,
            )
        if each.name == READ:
            first, records = each.answer
            reached = first + len(records) - 1
            if first <= highest and reached < highest:
                raise _Broken(
                    f"{described(each)} ends at position {reached}, and {highest} had been shown before it began",
                    latest,
                    each,
                )
