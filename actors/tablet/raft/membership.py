"""Which configuration may follow which: one change at a time, and never more than one voter apart.

Two configurations that differ by at most one voter have no disjoint majorities (Raft thesis, 4.1), so no joint
consensus is needed. The other rules are Kudu's: the leader neither removes nor demotes itself, and whoever
proposes must know the configuration that he changes.
"""

from __future__ import annotations

from ebla.actors.tablet.raft.messages import NON_VOTER, VOTER, Configuration, Peer
from ebla.storage.errors import InvalidArgument


def check_change(current: Configuration, proposed: Configuration, leader: str) -> None:
    """Raise InvalidArgument, naming the rule, unless `leader` may propose this."""
    if proposed.index != current.index:
        raise InvalidArgument(
            f"the configuration proposed was derived from index={proposed.index}, but index={current.index} is in "
            "force; read it again and change that one (its index goes along unchanged)"
        )
    uuids = [peer.uuid for peer in proposed.peers]
    if len(set(uuids)) != len(uuids) or "" in uuids:
        raise InvalidArgument(f"peers need distinct, non-empty uuids: {uuids}")
    for peer in proposed.peers:
        if peer.member not in (VOTER, NON_VOTER):
            raise InvalidArgument(
                f"peer {peer.uuid}: member is {VOTER!r} or {NON_VOTER!r}, not {peer.member!r}"
            )
        if not peer.address and len(uuids) > 1:
            raise InvalidArgument(f"peer {peer.uuid} needs an address, or the others cannot reach it")
    own = proposed.peer(leader)
    if own is None or own.member != VOTER:
        raise InvalidArgument(f"the leader {leader} cannot remove or demote itself; let it step down first")
    if sorted(proposed.peers, key=_uuid) == sorted(current.peers, key=_uuid):
        raise InvalidArgument("the configuration proposed is the one in force; there is nothing to change")
    before = {peer.uuid for peer in current.voters()}
    after = {peer.uuid for peer in proposed.voters()}
    if len(before ^ after) > 1:
        raise InvalidArgument(
            f"one change may add or remove one voter, this one changes {sorted(before ^ after)}; go step by step"
        )


def _uuid(peer: Peer) -> str:
    return peer.uuid
