"""A journal node that has lost its directory, and is to be one of the journal's nodes again.

It has forgotten what it promised and what it took, so until it can have forgotten nothing that matters it *rejoins*:

    asked     it promises no epoch, takes part in no recovery and lists no segments: it counts for no majority of those
    fenced    what its peers have promised is promised here, as learned from as many of them as make a majority
    useful    it takes edits from the segment on that its writer started after it had heard of the loss
    whole     when it has that segment and, from its peers, every finalized one before it

Why that is enough. Whatever was decided with the help of the lost directory was decided with a majority less one of the
other nodes. A majority of them, which is what a recovery or a promise is without this node, and what this node learned
from, has one of those. So a committed edit is seen by every recovery before this node is whole, and an older writer than
any that the lost directory had promised to is refused here. And in the segments that this node counts for afterwards the
lost directory had no part: they began after it was lost, which the token shows that the writer sends along.

The writer learns the token from the answer to a heartbeat; a start of a segment that was sent before the loss, and comes
late, does not have it.
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
from ebla.storage.errors import InvalidArgument


async def learned(world: World, request: m.RejoinRequest, timeout_s: float) -> State:
    """What a node without memory begins with, from so many of its peers that they would be a majority without it. Raises
    QuorumFailed if fewer answer, or have lost their directories too."""
    journal, nodes = request.journal, request.nodes
    peers = [node for node in nodes if node != world.address]
    needed = len(nodes) // 2 + 1
    if len(peers) < needed:
        raise InvalidArgument(
            f"journal {journal.name} has one node: nobody else knows what it held; restore its directory"
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
    """For operators: `node` has an empty directory in place of the one that it lost. When this returns it catches up by
    itself. The lost directory must never be put back. Repeat it after an error."""
    options.validate()
    if node not in options.nodes:
        raise InvalidArgument(f"{node} is none of the journal's nodes: {', '.join(options.nodes)}")
    request = m.RejoinRequest(options.journal, options.nodes)
    await world.network.call(node, "rejoin", request, m.Done, options.format_timeout_s)


def require_whole(name: str, address: str, state: State) -> None:
    if state.token:
        raise Rejoining(
            f"{address} has lost its directory and rejoins journal {name}; it counts again when it has caught up",
            journal=name,
        )


def covered(segments: Sequence[m.SegmentState], purged: int, before: int) -> bool:
    """Whether finalized segments hold every edit after `purged` and before `before`."""
    return reached(segments, purged) + 1 >= before


def reached(segments: Sequence[m.SegmentState], purged: int) -> int:
    """The last edit of which finalized segments hold all before it, after `purged`."""
    end = purged
    for segment in segments:
        if segment.finalized and segment.start <= end + 1:
            end = max(end, segment.end)
    return end
