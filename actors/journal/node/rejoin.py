"""The return of a journal node that has lost its directory.

The node has forgotten its promises and its edits. It *rejoins* until nothing that it forgot matters:

    asked     it promises no epoch, takes part in no recovery and lists no segments: it counts for no
              majority of those
    fenced    it promises what its peers have promised, as learned from as many peers as make a majority
    useful    it takes edits from the first segment that the writer started after it knew of the loss
    whole     when it has that segment and, from its peers, every finalized segment before

Why this is enough: Of 2k + 1 nodes, a decision in which the lost directory took part was also taken by at
least k of the 2k other nodes. Without this node, a recovery or a promise needs k + 1 of the others, and
this node learned from k + 1 of them: at least one of these took the decision. So every recovery before
this node is whole sees each committed edit, and this node keeps each promise that a majority had made
with the lost directory. In the segments that this node counts for afterwards the lost directory had no
part: they began after the loss, as the token in the writer's request proves.

An older copy of the directory is a lost one, too. The running writer recognises it: it says in every request which committed
edits this node has acknowledged. The copy is then marked, counts for nothing, and rejoins when an operator says so. A copy that
meets no such writer before another one begins is not recognised.

The writer learns the token from the answer to a heartbeat. A start of a segment that was sent before the
loss, and arrives late, does not have the token.
"""

from __future__ import annotations

from collections.abc import Sequence

from ebla.actors.errors import AlreadyPresent
from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import Rejoining
from ebla.actors.journal.options import JournalOptions
from ebla.actors.journal.quorum import each, majority, require_same_nodes
from ebla.actors.journal.records import State
from ebla.actors.world import World, new_id
from ebla.storage.errors import InvalidArgument, OldCopy


async def learned(world: World, request: m.RejoinRequest, timeout_s: float) -> State:
    """Learn the first state of a node without memory from as many of its peers as make a majority.

    Raises QuorumFailed if fewer answer, or if they have lost their directories too.
    """
    journal, nodes = request.journal, request.nodes
    peers = [node for node in nodes if node != world.address]
    needed = len(nodes) // 2 + 1
    if len(peers) < needed:
        raise InvalidArgument(
            f"journal {journal.name} has one node: no other has its edits; restore its directory"
        )

    async def ask(node: str) -> m.JournalStateReply:
        return await world.network.call(node, "journal_state", journal, m.JournalStateReply, timeout_s)

    what = f"learn what {world.address} had promised"
    found = await majority(journal.name, what, each(world, peers, ask), needed)
    require_same_nodes(journal.name, nodes, {node: state.nodes for node, state in found.items()})
    states = found.values()
    return State(
        promised=max(state.promised for state in states),
        purged=max(state.purged for state in states),
        held_ms=max(state.held_ms for state in states),
        token=new_id(world.random),
    )


def present(address: str, name: str) -> AlreadyPresent:
    return AlreadyPresent(
        f"{address} has journal {name}; only a node that has lost its directory can rejoin", what=name
    )


async def rejoin_journal(world: World, options: JournalOptions, node: str) -> None:
    """Let `node` rejoin, which has an empty directory in place of the lost one. For operators.

    When this returns, the node catches up by itself. The lost directory must never be put back. After an
    error, call this again.
    """
    options.validate()
    if node not in options.nodes:
        raise InvalidArgument(f"{node} is not one of the journal's nodes: {', '.join(options.nodes)}")
    request = m.RejoinRequest(options.journal, options.nodes)
    await world.network.call(node, "rejoin", request, m.Done, options.format_timeout_s)


def old_copy(name: str, address: str) -> OldCopy:
    return OldCopy(
        f"older copy of its directory, let it rejoin: {address} has acknowledged edits of journal {name} that are not here. It "
        f"counts for nothing until `ebla journal rejoin {address}`; its directory need not be emptied"
    )


def require_whole(name: str, address: str, state: State) -> None:
    if state.old:
        raise old_copy(name, address)
    if state.joining:
        raise Rejoining(
            f"{address} joins journal {name}; it counts when the node that was the only one has admitted it",
            journal=name,
        )
    if state.token:
        raise Rejoining(
            f"{address} has lost its directory and rejoins journal {name}; it counts again when it has caught up",
            journal=name,
        )


def covered(segments: Sequence[m.SegmentState], purged: int, before: int) -> bool:
    """Whether finalized segments hold every edit after `purged` and before `before`."""
    return reached(segments, purged) + 1 >= before


def reached(segments: Sequence[m.SegmentState], purged: int) -> int:
    """Return the last edit up to which finalized segments hold every edit after `purged`."""
    end = purged
    for segment in segments:
        if segment.finalized and segment.start <= end + 1:
            end = max(end, segment.end)
    return end
