"""Ledgers of programs: entries of one writer, ended by any client, and deleted.

    add           key = a fresh record, value = [ledger, n]: it is the n-th that the ledger's writer was given; its answer is the entry
    read-ledger   key = a ledger, value = the first entry; its answer is [records, the ledger's end after the read, or None]
    look          key = a ledger; its answer is the last acknowledged entry
    close, end    key = a ledger, which its writer closes, or any client ends; the answer is its last entry
    delete        key = a ledger

Promises, each judged for every ledger over the whole history:

    attempted   only records that were given to the ledger's writer are read, and none that surely was not added
    in turn     the n-th record that the writer was given is entry n, for the writer and for every reader
    complete    what is read, looked for or ended reaches to every entry that was acknowledged, or read, before that began
    one end     every client learns the same end, and no entry behind it was ever acknowledged or read
    fenced      no entry is acknowledged that was added after a client had learned the end
    gone        once a ledger was deleted, nothing is answered about it; before somebody deletes it, it is found
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ebla.chaos.checkers.verdict import Recorded, Verdict, broken, described, operations_of, passed, together
from ebla.chaos.history import Operation

ADD, READ, LOOK, CLOSE, END, DELETE = "add", "read-ledger", "look", "close", "end", "delete"
NOT_FOUND = "NotFound"
NONE = -1  # the last entry of an empty ledger

Problem = tuple[str, tuple[Operation, ...]]


def check_ledgers(recorded: Recorded) -> Verdict:
    operations = operations_of(recorded, (ADD, READ, LOOK, CLOSE, END, DELETE))
    adds = {each.key: each for each in operations if each.name == ADD}
    ledgers: dict[int, list[Operation]] = {}
    for each in operations:
        ledgers.setdefault(each.argument[0] if each.name == ADD else each.key, []).append(each)
    verdicts = [passed(sum(each.known for each in operations), "nothing was answered")]
    for ledger, of_ledger in ledgers.items():
        found = next(_problems(ledger, of_ledger, adds), None)
        if found is not None:
            verdicts.append(broken(f"ledger {ledger}: {found[0]}", found[1], len(of_ledger)))
    return together(verdicts, "ledgers")


def _problems(
    ledger: int, operations: Sequence[Operation], adds: Mapping[object, Operation]
) -> Iterator[Problem]:
    known = sorted((each for each in operations if each.known), key=lambda each: each.ended or 0)
    for each in known:
        if each.name in (CLOSE, END) and each.answer is None:
            yield f"{described(each)} left it open", (each,)
            return
        for entry, record in _entries(each):
            yield from _misplaced(ledger, entry, record, each, adds)
    yield from _of_the_end(known)
    yield from _incomplete(known)
    yield from _of_deletion(operations)


def _entries(shown: Operation) -> Iterator[tuple[int, object]]:
    if shown.name == ADD:
        yield shown.answer, shown.key
    if shown.name == READ:
        yield from enumerate(shown.answer[0], shown.argument)


def _misplaced(
    ledger: int, entry: int, record: object, shown: Operation, adds: Mapping[object, Operation]
) -> Iterator[Problem]:
    add = adds.get(record)
    if add is None or add.argument[0] != ledger:
        yield f"{described(shown)} shows record {record!r}, which its writer was not given", (shown,)
    elif add.failed:
        yield f"{described(shown)} shows record {record!r}, which surely was not added", (add, shown)
    elif add.argument[1] != entry:
        yield f"{described(add)} is entry {entry}, as {described(shown)} shows", (add, shown)


def _end(shown: Operation) -> int | None:
    """The end that the operation has learned."""
    if shown.name in (CLOSE, END):
        return int(shown.answer)
    return shown.answer[1] if shown.name == READ else None


def _reached(shown: Operation) -> int:
    """The last entry that the operation has shown."""
    if shown.name == READ:
        return int(shown.argument) + len(shown.answer[0]) - 1 if shown.answer[0] else NONE
    return NONE if shown.name == DELETE else int(shown.answer)


def _of_the_end(known: Sequence[Operation]) -> Iterator[Problem]:
    ended = next((each for each in known if _end(each) is not None), None)
    if ended is None:
        return
    end = _end(ended)
    assert end is not None and ended.ended is not None
    for each in known:
        other = _end(each)
        if other is not None and other != end:
            yield f"it ends at {end}, and at {other}, as {described(each)} shows", (ended, each)
        if _reached(each) > end:
            yield f"it ends at {end}, and {described(each)} shows entry {_reached(each)}", (ended, each)
        if each.name == ADD and each.began > ended.ended:
            yield f"{described(each)} was acknowledged, after {described(ended)} had ended it", (ended, each)


def _incomplete(known: Sequence[Operation]) -> Iterator[Problem]:
    highest, latest, at = NONE, None, 0
    for each in sorted(known, key=lambda each: each.began):
        while at < len(known) and (known[at].ended or 0) < each.began:
            if _reached(known[at]) > highest:
                highest, latest = _reached(known[at]), known[at]
            at += 1
        if latest is None or each.name in (ADD, DELETE):
            continue
        reached, first = _reached(each), 0
        if each.name == READ:
            first = each.argument
            reached = first + len(each.answer[0]) - 1
        if first <= highest and reached < highest:
            yield (
                f"{described(each)} reaches to {reached}, and entry {highest} had been shown before it began",
                (latest, each),
            )


def _of_deletion(operations: Sequence[Operation]) -> Iterator[Problem]:
    deletions = [each for each in operations if each.name == DELETE and not each.failed]
    done = [each for each in deletions if each.known]
    deleted = min(done, key=lambda each: each.ended or 0) if done else None
    for each in operations:
        if each.end is None:
            continue
        if deleted is not None and each.known and each.name != ADD and each.began > (deleted.ended or 0):
            yield f"{described(each)} was answered, after it had been deleted", (deleted, each)
        if (each.end.error or "").startswith(NOT_FOUND) and not any(
            one.began < each.end.index for one in deletions
        ):
            yield f"{described(each)} did not find it, and it was not deleted", (each,)
