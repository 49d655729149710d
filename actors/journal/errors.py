"""The errors of a journal: one class for each next step of the caller.

    StaleEpoch        a newer writer holds the journal       stop writing; start again as a reader
    LeaseHeld         another holds the journal's lease      try again when the lease has run out
    OutOfSync         this node cannot take this request     leave it out until the next segment
    NotFormatted      this node does not have the journal    let the node rejoin
    Rejoining         this node lost its directory           continue with the others; it catches up by itself
    ForeignJournal    the journal here is another one        check the addresses and the id
    TooFarBehind      a node's queue is full                 leave it out until the next segment
    JournalBroken     a decided edit is lost or has two      stop, touch nothing, compare the nodes' manifests
                      forms
    QuorumFailed      no majority answered                   the outcome is unknown: recover with a new epoch
    EditsGone         the next edits were purged             load a newer checkpoint
    NodesMoved        the journal now has other nodes        ask the nodes that the error names

JournalBroken and NodesMoved are never outvoted: one node that answers with one of them ends the request.
"""

from __future__ import annotations

from ebla.storage.errors import EblaError


class JournalError(EblaError):
    journal: str | None


class StaleEpoch(JournalError):
    """The request's epoch is lower than the epoch that this node has promised. Nothing was changed."""

    epoch: int | None
    promised: int | None


class LeaseHeld(JournalError):
    """This node promises no later epoch while `holder` (None: unknown) has the lease. Nothing was changed."""

    holder: str | None
    left_s: float | None
    retriable = True


class OutOfSync(JournalError):
    """The request does not continue what this node has. Nothing was changed on disk."""


class NotFormatted(JournalError):
    """This node does not have the journal. It never answers "no such edit" instead."""


class Rejoining(JournalError):
    """This node lost its directory, or is new, and cannot count for a majority yet. Nothing was changed."""

    retriable = True


class ForeignJournal(JournalError):
    """The journal of this name has another id, other nodes, or another layout."""

    wanted: str | None
    found: str | None


class TooFarBehind(JournalError):
    """The writer's queue for a node is full. The other nodes are not held up."""

    limit: str | None


class JournalBroken(JournalError):
    """A node broke a promise: a decided edit is missing or has two forms."""


def broken(journal: str, what: str) -> JournalBroken:
    return JournalBroken(
        f"journal {journal} is broken: {what}; stop the masters, leave the directories of its nodes as they are, and "
        "compare what `ebla journal status` shows of them",
        journal=journal,
    )


class QuorumFailed(JournalError):
    """Too many nodes failed; `nodes` has each one's error. The request may be done, now or later."""

    what: str | None
    nodes: list[str] | None
    possibly_applied = True


class NodesMoved(JournalError):
    """The sender's nodes are out of date: the journal has `nodes`, of `version`. Nothing was changed."""

    version: int | None
    nodes: list[str] | None
    retriable = True


class EditsGone(JournalError):
    """The edits after `after` are no longer in the journal."""

    after: int | None
