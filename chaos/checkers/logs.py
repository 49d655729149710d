"""A log: records at positions, appended by one writer at a time.

    append     key = a fresh record, value = [writer, call, place]: calls and places ascend; its answer is the position
    read-log   key = the first position, None for the first that is kept; its answer is [position, records]
    trim       key = a position; records before it are deleted

Promises, each judged over the whole history:

    placed      a record is at one position, the same for its writer and for every reader, and each position has one record
    kept        a record that was acknowledged, or read, before a read began is in the read, if the read reaches to its position
    complete    a read reaches to every record that was acknowledged, or read, before it began
    ordered     a record that was acknowledged before another one was appended has the lower position
    in turn     records of one writer are in the order of its calls
    together    records of one call are next to each other; if some of them are missing, they are the last ones
    begun       a read begins at the position that it names
    trimmed     a read from the first position that is kept on leaves out only records before a position that a trim was asked for, and
                records that were appended longer ago than the log's retention; only a read that begins before such a position is
                refused because of a trim
    attempted   only records that were appended are read, and none that surely was not
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ebla.chaos.checkers.verdict import Recorded, Verdict, broken, described, nothing, operations_of
from ebla.chaos.history import Operation

APPEND, READ, TRIM = "append", "read-log", "trim"
TRIMMED = "RecordsTrimmed"


class _Broken(Exception):
    def __init__(self, problem: str, *operations: Operation) -> None:
        super().__init__(problem)
        self.problem, self.operations = problem, operations


@dataclass
class _Log:
    """The evidence of the operations so far, in the order of their ends."""

    appends: dict[object, Operation]
    trims: Sequence[Operation]
    retain_s: float | None
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

    def judge_start(self, read: Operation, first: int) -> None:
        """`first`: the first position that the read shows."""
        if read.key is not None and first != read.key:
            raise _Broken(f"{described(read)} begins at position {first}, not where it was asked to", read)
        if read.key is None:
            self._judge_kept(read, first, f"{described(read)} begins at position {first}")

    def judge_refusal(self, read: Operation) -> None:
        assert read.end is not None
        if (read.end.error or "").startswith(TRIMMED):
            begin = read.key or 0
            self._judge_kept(read, begin + 1, f"{described(read)} was refused: {read.end.error}")

    def _judge_kept(self, read: Operation, first: int, what: str) -> None:
        """Raise _Broken if a record before `first` had to be there when the read ended."""
        assert read.end is not None
        before = [each for each in self.trims if each.began < read.end.index and not each.failed]
        asked = max((each.key for each in before), default=0)
        if first > asked and self.retain_s is None:
            raise _Broken(f"{what}, and no trim asked for more than {asked}", read)
        for position in range(asked, first):
            append = self.appends.get(self.records[position][0]) if position in self.records else None
            if append is not None and read.end.time_us - append.invoke.time_us < (self.retain_s or 0) * 1e6:
                raise _Broken(
                    f"{what}, and record {append.key!r} is younger than {self.retain_s:g} s", append, read
                )


def check_log(recorded: Recorded, retain_s: float | None = None) -> Verdict:
    operations = operations_of(recorded, (APPEND, READ, TRIM))
    known = sorted(
        (each for each in operations if each.known and each.name != TRIM), key=lambda each: each.ended or 0
    )
    if not any(each.name == READ for each in known):
        return nothing("no read of the log was answered")
    log = _Log(
        {each.key: each for each in operations if each.name == APPEND},
        [each for each in operations if each.name == TRIM],
        retain_s,
    )
    try:
        _judge(log, operations, known)
    except _Broken as error:
        return broken(error.problem, error.operations, len(known))
    return Verdict(True, judged=len(known))


def _judge(log: _Log, operations: Sequence[Operation], known: Sequence[Operation]) -> None:
    shown_by: list[
        tuple[int, int, Operation]
    ] = []  # when an operation ended, the greatest position that it showed
    for each in known:
        if each.name == APPEND:
            log.place(each.answer, each.key, each)
            shown_by.append((each.ended or 0, each.answer, each))
            continue
        first, records = each.answer
        log.judge_start(each, first)
        for position, record in enumerate(records, first):
            log.place(position, record, each)
        if records:
            shown_by.append((each.ended or 0, first + len(records) - 1, each))
    _judge_times(known, shown_by)
    _judge_writers(log)
    for each in operations:
        if each.name == READ and each.failed:
            log.judge_refusal(each)


def _judge_writers(log: _Log) -> None:
    """In turn and together: compare each record with the one before it, of its writer and in the log."""
    placed = sorted((log.appends[record] for record in log.positions), key=lambda each: each.argument)
    for earlier, later in pairwise(placed):
        at, behind = log.positions[earlier.key], log.positions[later.key]
        if earlier.argument[0] == later.argument[0] and behind <= at:
            raise _Broken(
                f"{described(later)} was asked after {described(earlier)} by the same writer, but is at position {behind}, not "
                f"behind {at}",
                earlier,
                later,
            )
    for each in placed:
        writer, call, place = each.argument
        position = log.positions[each.key]
        before = log.records.get(position - 1)
        if not place or (position > 0 and before is None):
            continue
        if before is None or log.appends[before[0]].argument != [writer, call, place - 1]:
            raise _Broken(
                f"{described(each)} is at position {position}, not next to the record before it of the same call",
                each,
                *([log.appends[before[0]]] if before else []),
            )


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
