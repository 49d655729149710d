"""Log matching: how a follower compares a leader's message with its own log (Raft paper, 5.3)."""

from __future__ import annotations

import msgspec

from ebla.actors.messages.stream import AppendRequest
from ebla.actors.tablet.engine.log_index import LogIndex


class Agreement(msgspec.Struct, frozen=True):
    """The logs are equal up to `until` once the entries from `first_new` on are taken (None: the
    log has all of them). `truncate_from`: equals `first_new`, if that replaces entries of ours."""

    until: int
    first_new: int | None
    truncate_from: int | None


class Disagreement(msgspec.Struct, frozen=True):
    """The predecessor is missing here or is another entry; the leader should try next after `hint`."""

    hint: int


def compare(log: LogIndex, commit_index: int, request: AppendRequest) -> Agreement | Disagreement:
    """Compare a message with the log. Only a conflicting entry truncates: a late, shorter message
    must not remove the entries of a later one."""
    previous = request.previous_index
    assert log.dropped_index <= commit_index <= log.last_index, (
        "committed entries are in the log",
        commit_index,
    )
    if previous > log.last_index:
        return Disagreement(log.last_index)
    # Dropped entries were committed, so they equal the leader's log without a comparison.
    if previous >= log.dropped_index and log.term_at(previous) != request.previous_term:
        # The committed prefix surely agrees. To go back to it at once takes one exchange and
        # resends at most the uncommitted tail; to go back entry by entry would take one exchange
        # per entry.
        return Disagreement(commit_index)
    first_new = None
    for position, entry in enumerate(request.entries, previous + 1):
        assert entry.index == position, ("a message has no gaps", entry.index, position)
        if position <= log.dropped_index:
            continue
        if position > log.last_index or log.term_at(position) != entry.term:
            first_new = position
            break
    assert first_new is None or first_new > commit_index, (
        "committed entries never change",
        first_new,
        commit_index,
    )
    replaced = first_new if first_new is not None and first_new <= log.last_index else None
    return Agreement(previous + len(request.entries), first_new, replaced)


def lacks_committed(log: LogIndex, commit_index: int, request: AppendRequest) -> bool:
    """Whether the sender surely has other entries than those that are committed here. The terms of a log ascend, so an entry of a
    later term than the last dropped one is not among those dropped."""
    shown = [(request.previous_index, request.previous_term)]
    shown += [(entry.index, entry.term) for entry in request.entries if entry.index <= commit_index]
    return any(
        term != log.term_at(index) if index >= log.dropped_index else term > log.dropped_term
        for index, term in shown
        if index <= commit_index
    )


def contradicts(log: LogIndex, until: int, request: AppendRequest) -> bool:
    """Whether the sender may lack entries that are here, up to `until`. Only a predecessor at or after
    `until` disproves this."""
    assert until <= log.last_index, ("the entries are in the log", until, log.last_index)
    previous = request.previous_index
    if previous != until:
        return previous < until
    return log.term_at(previous) != request.previous_term
