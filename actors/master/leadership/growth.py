"""The growth of the journal from one node, in the process of its only master, to several nodes.

The master serves meanwhile.

    1  copy      the active master writes a copy of its catalog into the journal, so that no node needs
                 edits that were purged before
    2  fetch     the new nodes are formatted as joining nodes, which count for no majority, and fetch the
                 finalized segments
    3  finish    the master finishes its changes, finalizes the last segment, and answers no more requests;
                 the new nodes fetch that segment
    4  commit    the old node makes the new set of nodes durable: the commit point. From now on it refuses
                 requests of the old set
    5  admit     the old node requests each new node to count (actors/journal/node/admissions.py), and
                 repeats the request, also after a restart
    6  take over the master learns the new set and takes over, as after any active term

Why this is enough: Every majority of the old set is the old node. It refuses the old set after step 4, so
from then on the old set decides nothing. The new nodes refuse all requests before step 5, so before then
the new set decides nothing. The decisions of the old set end with step 3, and every node that counts has
them, since a new node is admitted only if it has them. A failure before step 4 leaves the old set in
force; the next try continues with the segments that the new nodes already have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ebla.actors.errors import Unavailable
from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import broken
from ebla.actors.journal.writer.recovery import End
from ebla.actors.master.leadership.active_term import ActiveTerm
from ebla.actors.master.options import GroupOptions
from ebla.actors.world import World
from ebla.storage.errors import EblaError, InvalidArgument


async def grow(world: World, options: GroupOptions, active_term: ActiveTerm, nodes: Sequence[str]) -> None:
    """Grow the journal to `nodes`.

    An error before step 3 is one that the operator can correct; nothing has changed then. From step 3 on,
    the active term has ended when this returns or raises.
    """
    journal, only = options.journal, options.journal.nodes
    if only != (world.address,) or nodes[0] != world.address or len(nodes) < 2:
        raise InvalidArgument(
            f"a journal grows from one node, of {world.address}, to several with this one; it has {', '.join(only)}, and "
            f"{', '.join(nodes)} are wanted"
        )
    wanted = replace(journal.journal, version=journal.journal.version + 1)
    joins = _Joins(world, options, m.RejoinRequest(wanted, tuple(nodes)))
    try:
        await joins.reach(End(0, 0), options.rpc_timeout_s)
        copied = await active_term.write_catalog()
        await joins.reach(End(copied, 0), options.grow_s)
    except EblaError:
        active_term.give_up_growing()
        raise
    try:
        end = await active_term.finish()
        tokens = await joins.reach(end, options.hand_over_s)
        await world.faults.here("master.grow.before_commit")
        request = m.GrowRequest(
            journal.journal, active_term.holder.epoch, tuple(nodes), tokens, end.txid, end.digest
        )
        await world.network.call(world.address, "grow", request, m.Done, options.rpc_timeout_s)
        await world.faults.here("master.grow.after_commit")
    finally:
        active_term.end(Unavailable(f"{world.address} follows its journal to other nodes"))
        world.spawn(active_term.holder.release(), "release the lease")


@dataclass(eq=False)
class _Joins:
    _world: World
    _options: GroupOptions
    _request: m.RejoinRequest

    async def reach(self, end: End, limit_s: float) -> tuple[str, ...]:
        """Wait until each of the new nodes has all edits up to `end`; return their tokens.

        With a digest in `end`, the nodes must have these edits and no others.
        """
        tokens = []
        until = self._world.now() + limit_s
        for node in self._request.nodes[1:]:
            why = f"it has not fetched the journal up to edit {end.txid}"
            while (
                not (joining := await self._ask(node))
                or isinstance(joining, EblaError)
                or joining.end < end.txid
            ):
                if isinstance(joining, EblaError):
                    why = str(joining)
                if self._world.now() >= until:
                    raise Unavailable(
                        f"{node} does not join the journal within {limit_s:g} s: {why}; mend this, then ask again"
                    )
                await self._world.clock.sleep(self._options.look_s / 4)
            if end.digest and (joining.end, joining.digest) != (end.txid, end.digest):
                raise broken(
                    self._request.journal.name,
                    f"{node} has other edits, up to {joining.end}, than the journal, which ends at {end.txid}",
                )
            tokens.append(joining.token)
        return tuple(tokens)

    async def _ask(self, node: str) -> m.Joining | EblaError:
        request, timeout_s = self._request, self._options.rpc_timeout_s
        try:
            return await self._world.network.call(node, "join", request, m.Joining, timeout_s)
        except EblaError as error:
            return error
