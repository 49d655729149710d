"""What can go wrong in a journal, told by what the caller should do next.

    StaleEpoch        a newer writer holds the journal       stop writing; start again as a reader
    LeaseHeld         somebody holds the journal's lease     look again when it has run out
    OutOfSync         this node cannot take this request     leave it out until the next segment
    NotFormatted      this node never heard of the journal   let the node rejoin
    Rejoining         this node lost its directory           go on with the others; it catches up by itself
    ForeignJournal    the journal here is another one        look at the addresses and at the id
    TooFarBehind      a node's queue is full                 leave it out until the next segment
    JournalBroken     two truths, or a lost one              stop, touch nothing, compare the nodes' manifests
    QuorumFailed      no majority answered                   the outcome is unknown: recover with a new epoch
    EditsGone         edits before these were purged         load a newer checkpoint
    NodesMoved        the journal has other nodes by now     ask those that the error names

JournalBroken and NodesMoved are never outvoted: one node that says so ends whatever was asked.
"""

from __future__ import annotations

from typing import ClassVar

from ebla.storage.errors import EblaError


class JournalError(EblaError):
    fields: ClassVar[tuple[str, ...]] = ("journal",)
    journal: str | None


class StaleEpoch(JournalError):
    """The request's epoch is lower than the one this node has promised. Nothing was changed."""

    fields = ("journal", "epoch", "promised")
    epoch: int | None
    promised: int | None


class LeaseHeld(JournalError):
    """This node promises no later epoch while `holder` (None: not known) holds its lease. Nothing was changed."""

    fields = ("journal", "holder", "left_s")
    holder: str | None
    left_s: float | None
    retriable = True


class OutOfSync(JournalError):
    """The request does not continue what this node has. Nothing was changed on disk."""


class NotFormatted(JournalError):
    """There is no such journal on this node. It never says "no such edit" in its place."""


class Rejoining(JournalError):
    """This node has lost its directory and does not know yet what it must know to be counted. Nothing was changed."""

    retriable = True


class ForeignJournal(JournalError):
    """The journal of this name has another id, other nodes, or another layout."""

    fields = ("journal", "wanted", "found")
    wanted: str | None
    found: str | None


class TooFarBehind(JournalError):
    """The writer's queue for a node is full. The other nodes are not waited for by it."""

    fields = ("journal", "limit")
    limit: str | None


class JournalBroken(JournalError):
    """What was found cannot be if every node kept its promises: a decided edit is missing or has two forms."""


def broken(journal: str, what: str) -> JournalBroken:
    return JournalBroken(
        f"journal {journal} is broken: {what}; stop the masters, leave the directories of its nodes as they are, and "
        "compare what `ebla journal status` shows of them",
        journal=journal,
    )


class QuorumFailed(JournalError):
    """Too many nodes failed; `nodes` has each one's error. What was asked may have been done, or be done yet."""

    fields = ("journal", "what", "nodes")
    what: str | None
    nodes: list[str] | None
    possibly_applied = True


class NodesMoved(JournalError):
    """The journal has another set of nodes than the sender knows: `nodes`, of this `version`. Nothing was changed."""

    fields = ("journal", "version", "nodes")
    version: int | None
    nodes: list[str] | None
    retriable = True


class EditsGone(JournalError):
    """The edits after `after` are not in the journal any more."""

    fields = ("journal", "after")
    after: int | None
