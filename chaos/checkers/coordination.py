"""Coordination: locks have one holder at a time, numbers and versions are unique, nodes of ended sessions are gone.

    acquire          key = lock                      -> the token
    use, release     key = lock, value = token       a step under the lock, by a process that is sure to hold it
    create           key = parent, value = session   -> the number of the new sequential node; value None: not ephemeral
    delete           key = number
    list             key = parent                    -> numbers of its children
    sure, ended      key = session                   it cannot have expired by now; the client learned that it has
    get              key = node                      -> [value, version]
    cas              key = node, value = [version, new value]  -> [True, new version] or [False, the version found]

**Locks**, per lock: tokens are never given twice, and in the order of the history the tokens of acquires and uses never fall: no
process is sure to hold the lock after a later holder has got it.

**Numbers**, of all creates together: they are unique, and the number of a create that began after another was answered is
greater. A list holds the nodes that were created, were not deleted, and belong to no ended session, and only nodes whose creation
was requested. A node that a list showed is in later lists, whether or not its create was answered; a node that a list showed to
be gone stays gone.

**Versions**, per node: every compare-and-set that took place, by its answer or by a read, followed the version that it named;
a refused one found another version, which a change made. Each version was followed once. A read shows the value that was written with its version.
Versions never fall from an answer to a later request. As versions order all operations, this is linearizability, without a
search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from ebla.chaos.checkers.verdict import (
    Problem,
    Recorded,
    Verdict,
    brief,
    broken,
    by_key,
    described,
    listed,
    nothing,
    operations_of,
    together,
)
from ebla.chaos.history import Operation

LOCKS = ("acquire", "use", "release")
NUMBERS = ("create", "delete", "list", "sure", "ended")
VERSIONS = ("get", "cas")


def check_coordination(recorded: Recorded) -> Verdict:
    parts = [
        _judged(operations_of(recorded, LOCKS), lambda found: _per_key(found, _locks), "no lock was used"),
        _judged(
            operations_of(recorded, NUMBERS), lambda found: _Numbers(found).problems(), "no node was made"
        ),
        _judged(
            operations_of(recorded, VERSIONS), lambda found: _per_key(found, _versions), "no node was set"
        ),
    ]
    return together([each for each in parts if each.judged] or parts)


def _judged(
    operations: list[Operation], rules: Callable[[list[Operation]], Iterator[Problem]], empty: str
) -> Verdict:
    judged = sum(each.known for each in operations)
    if not judged:
        return nothing(empty)
    problem = next(rules(operations), None)
    return broken(*problem, judged) if problem else Verdict(True, judged=judged)


def _per_key(
    operations: Iterable[Operation], rule: Callable[[list[Operation]], Iterator[Problem]]
) -> Iterator[Problem]:
    for found in by_key(operations).values():
        yield from rule(found)


def _by_end(operations: Iterable[Operation]) -> list[Operation]:
    return sorted((each for each in operations if each.known), key=lambda each: each.ended or 0)


# -- locks


def _locks(operations: list[Operation]) -> Iterator[Problem]:
    given: dict[int, Operation] = {}
    latest: tuple[int, Operation] | None = None
    for each in _by_end(operations):
        if each.name == "release":
            continue
        token = each.answer if each.name == "acquire" else each.argument
        if each.name == "acquire":
            if token in given:
                yield f"{described(each)} got the token of {described(given[token])}", [given[token], each]
            given[token] = each
        if latest is not None and token < latest[0]:
            yield (
                f"{described(each)} was sure to hold the lock after {described(latest[1])}, a later holder",
                [latest[1], each],
            )
        latest = (token, each)


# -- numbers


class _Numbers:
    def __init__(self, operations: list[Operation]) -> None:
        self.creates = [each for each in operations if each.name == "create" and not each.failed]
        self.lists = [each for each in operations if each.name == "list" and each.known]
        self.deletes: dict[
            int, Operation
        ] = {}  # the first that was asked for, which excuses a list without the node
        self.deleted: dict[
            int, Operation
        ] = {}  # the first that was answered, which proves that the node is gone
        self.ended: dict[str, Operation] = {}
        self.sure: dict[str, Operation] = {}
        self.there: dict[tuple[Any, int], Operation] = {}  # by parent and number, the first proof
        self.gone: dict[tuple[Any, int], Operation] = {}
        for each in _by_end(operations):
            if each.name == "delete":
                self.deleted.setdefault(each.key, each)
        for each in operations:
            if each.name == "delete" and not each.failed:
                self.deletes.setdefault(each.key, each)
            elif each.name == "ended":
                self.ended.setdefault(each.key, each)
            elif each.name == "sure":
                self.sure[each.key] = each

    def problems(self) -> Iterator[Problem]:
        yield from self.repeated()
        yield from self.falling()
        self.learn()
        for each in self.lists:
            yield from self.wrong(each)

    def repeated(self) -> Iterator[Problem]:
        known: dict[int, Operation] = {}
        for each in _by_end(self.creates):
            if each.answer in known:
                yield (
                    f"{described(each)} got the number of {described(known[each.answer])}",
                    [known[each.answer], each],
                )
            known[each.answer] = each

    def falling(self) -> Iterator[Problem]:
        greatest: Operation | None = None
        ended = iter(_by_end(self.creates))
        next_ended = next(ended, None)
        for each in self.creates:
            while next_ended is not None and (next_ended.ended or 0) < each.began:
                if greatest is None or next_ended.answer > greatest.answer:
                    greatest = next_ended
                next_ended = next(ended, None)
            if each.known and greatest is not None and each.answer < greatest.answer:
                yield f"{described(each)} is less than {described(greatest)} before it", [greatest, each]

    def learn(self) -> None:
        """Collect the nodes that were there or gone, with the first operation that proves it."""
        for each in _by_end([*self.creates, *self.lists]):
            for number in [each.answer] if each.name == "create" else each.answer:
                self.there.setdefault((each.key, number), each)
        for each in _by_end(self.lists):
            for (parent, number), proof in self.there.items():
                if parent == each.key and number not in each.answer and (proof.ended or 0) < each.began:
                    self.gone.setdefault((parent, number), each)

    def back(self, read: Operation) -> Iterator[Problem]:
        """Nodes that the list holds again, and nodes that it lacks although they cannot have been deleted."""
        for number in dict.fromkeys(read.answer):
            missed = self.gone.get((read.key, number))
            if missed is not None and (missed.ended or 0) < read.began:
                yield f"{brief(read)} holds {number}, which {brief(missed)} shows was gone", [missed, read]
        for (parent, number), shown in self.there.items():
            if parent != read.key or number in read.answer or (shown.ended or 0) > read.began:
                continue
            delete = self.deletes.get(number)
            deleted = delete is not None and delete.began < (read.ended or 0)
            if shown.name == "list" and not deleted and self.stays(number, shown):
                yield f"{brief(read)} lacks {number}, which {brief(shown)} held", [shown, read]

    def stays(self, number: int, shown: Operation) -> bool:
        """Whether no create that may have made the node was for a session."""
        began = [each for each in self.creates if each.key == shown.key and each.began < (shown.ended or 0)]
        made = [each for each in began if each.known and each.answer == number]
        return all(each.argument is None for each in made or began if each in made or not each.known)

    def wrong(self, read: Operation) -> Iterator[Problem]:
        assert read.ended is not None
        held = dict.fromkeys(read.answer)
        if len(held) < len(read.answer):
            yield f"{brief(read)} holds a node twice: {listed(read.answer)}", [read]
        here = [each for each in self.creates if each.key == read.key]
        known = {each.answer: each for each in here if each.known}
        for number, create in known.items():
            delete, session = self.deletes.get(number), create.argument
            if number in held:
                deleted = self.deleted.get(number)
                if create.began > read.ended:
                    yield f"{brief(read)} holds {number} before {described(create)} began", [create, read]
                elif deleted is not None and (deleted.ended or 0) < read.began:
                    yield (
                        f"{brief(read)} holds {number}, but {described(deleted)} was before it",
                        [deleted, read],
                    )
                elif session in self.ended and self.ended[session].began < read.began:
                    yield (
                        f"{brief(read)} holds {number}, made by {described(create)}, but {described(self.ended[session])}",
                        [create, self.ended[session], read],
                    )
            elif (create.ended or 0) < read.began and (delete is None or delete.began > read.ended):
                proof = self.sure.get(session) if session is not None else create
                if proof is not None and (session is None or proof.began > read.ended):
                    yield (
                        f"{brief(read)} lacks {number}, made by {described(create)}; {described(proof)}",
                        [create, proof, read],
                    )
        strangers = [number for number in held if number not in known]
        unknown = sum(not each.known and each.began < read.ended for each in here)
        if len(strangers) > unknown:
            yield (
                f"{brief(read)} holds {listed(strangers)}, of which {unknown} at most were requested",
                [read],
            )
        yield from self.back(read)


# -- versions


def _versions(operations: list[Operation]) -> Iterator[Problem]:
    changes = [each for each in operations if each.name == "cas" and each.known and each.answer[0]]
    written: dict[int, Operation] = {}
    followed: dict[int, Operation] = {}
    for each in changes:
        before, after = each.argument[0], each.answer[1]
        for known, version, what in ((written, after, "made"), (followed, before, "followed")):
            if version in known:
                yield (
                    f"{described(each)} {what} version {version} as {described(known[version])} did",
                    [known[version], each],
                )
            known[version] = each
        if after <= before:
            yield f"{described(each)} went back", [each]
    for each in operations:
        if each.name == "cas" and each.known and not each.answer[0] and each.answer[1] == each.argument[0]:
            yield (
                f"{described(each)} was refused although it found the version that it named",
                [each],
            )
    yield from _wrong_reads(operations, written)
    unanswered = {
        each.argument[1]: each
        for each in operations
        if each.name == "cas" and not each.known and not each.failed
    }
    made = {**_shown(operations, unanswered), **written}
    yield from _between(made)
    yield from _unmade(operations, made, unanswered)
    yield from _falling(operations)


def _shown(operations: list[Operation], unanswered: Mapping[Any, Operation]) -> dict[int, Operation]:
    """By version: changes without an answer, by value, that a read shows to have taken place."""
    reads = [each.answer for each in operations if each.name == "get" and each.known and each.answer]
    return {version: unanswered[value] for value, version in reads if value in unanswered}


def _unmade(
    operations: list[Operation], made: Mapping[int, Operation], unanswered: Mapping[Any, Operation]
) -> Iterator[Problem]:
    """Every version that a refused change found was made: by a change that is known, or by one without an answer, which makes one
    version at most."""
    found: dict[int, Operation] = {}
    for each in _by_end(operations):
        if each.name == "cas" and not each.answer[0] and each.answer[1]:
            found.setdefault(each.answer[1], each)
    shown = {each.began for each in made.values()}
    strangers = sorted(version for version in found if version not in made)
    for number, version in enumerate(strangers, 1):
        each = found[version]
        makers = [one for one in unanswered.values() if one.began not in shown and one.argument[0] < version]
        if len(makers) < number or all(one.began > (each.ended or 0) for one in makers):
            yield f"{described(each)} found version {version}, which no change made", [each]


def _between(written: dict[int, Operation]) -> Iterator[Problem]:
    """No version was written between the version that a change names and the one that it made."""
    for earlier, version in pairwise(sorted(written)):
        each, other = written[version], written[earlier]
        if earlier > each.argument[0]:
            yield f"{described(each)} was carried out although {described(other)} came between", [other, each]


def _wrong_reads(operations: list[Operation], written: dict[int, Operation]) -> Iterator[Problem]:
    attempts = {each.argument[1]: each for each in operations if each.name == "cas" and not each.failed}
    refused = {value for value, each in attempts.items() if each.known and not each.answer[0]}
    shown: dict[int, Operation] = {}
    for each in operations:
        if each.name != "get" or not each.known or each.answer is None:
            continue
        value, version = each.answer
        source = written.get(version) or attempts.get(value)
        if source is None:
            yield f"{described(each)} shows a value that was never written", [each]
        elif value in refused:
            yield (
                f"{described(each)} shows the value of {described(attempts[value])}, which was refused",
                [attempts[value], each],
            )
        elif source.argument[1] != value:
            yield (
                f"{described(each)} does not show the value that {described(source)} wrote with this version",
                [source, each],
            )
        elif source.began > (each.ended or 0):
            yield f"{described(each)} shows the value that {described(source)} wrote later", [source, each]
        elif value in shown and shown[value].answer[1] != version:
            yield (
                f"{described(each)} and {described(shown[value])} show one change as two",
                [shown[value], each],
            )
        shown.setdefault(value, each)


def _falling(operations: list[Operation]) -> Iterator[Problem]:
    """No operation shows an older version than one that was known when it began."""
    latest: tuple[int, Operation] | None = None
    ended = iter(_by_end(operations))
    next_ended = next(ended, None)
    for each in operations:
        while next_ended is not None and (next_ended.ended or 0) < each.began:
            version = _version(next_ended)
            if latest is None or version > latest[0]:
                latest = (version, next_ended)
            next_ended = next(ended, None)
        if latest is None or not each.known:
            continue
        version = _version(each)
        if version < latest[0] or (version == latest[0] and _changed(each)):
            yield (
                f"{described(each)} is behind {described(latest[1])}, which was before it",
                [latest[1], each],
            )


def _version(operation: Operation) -> int:
    answer: Any = operation.answer
    if operation.name == "get":
        return 0 if answer is None else int(answer[1])
    return int(answer[1])


def _changed(operation: Operation) -> bool:
    return operation.name == "cas" and bool(operation.answer[0])
