"""The rules by which one configuration may follow another: one change at a time, and at most one voter apart.

Two configurations that differ by at most one voter have no disjoint majorities (Raft thesis, 4.1),
so no joint consensus is needed. The other rules are Kudu's: the leader neither removes nor demotes
itself, and a request names the configuration that it changes.

A forced configuration breaks the first rule, for a majority that is lost for good. It has a forced
epoch, and so does every configuration after it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ebla.actors.replication.configuration import NON_VOTER, VOTER, Configuration, Peer
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
        if peer.promote and peer.member != NON_VOTER:
            raise InvalidArgument(f"peer {peer.uuid} is a voter already; promote is for non-voters")
        if peer.replace and peer.member != VOTER:
            raise InvalidArgument(f"peer {peer.uuid} is no voter; replace is for voters, remove it instead")
        if not peer.address and len(uuids) > 1:
            raise InvalidArgument(f"peer {peer.uuid} needs an address, or the others cannot reach it")
    if proposed.unsafe != current.unsafe:
        raise InvalidArgument(
            f"the mark of forced configurations stays as it is: {current.unsafe}, not {proposed.unsafe}"
        )
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


def promoted(current: Configuration, uuid: str) -> Configuration:
    """The configuration `current`, with this pre-voter as a voter."""
    peers = tuple(
        msgspec.structs.replace(peer, member=VOTER, promote=False) if peer.uuid == uuid else peer
        for peer in current.peers
    )
    made = msgspec.structs.replace(current, peers=peers)
    grown = len(made.voters()) - len(current.voters())
    assert grown == 1, ("a promotion adds one voter", current, made)
    return made


def forced(
    committed: Configuration, active: Configuration, keep: Sequence[str], survivor: str, *, above: int = 0
) -> Configuration:
    """The configuration `committed` with the members `keep` only, led by `survivor`. A pending
    `active` one is given up. The forced epoch exceeds those of both, and `above`. Raises
    InvalidArgument, naming the rule."""
    unknown = [uuid for uuid in keep if committed.peer(uuid) is None]
    if unknown:
        raise InvalidArgument(f"{unknown} are no members; keep only some of {_named(committed)}")
    if len(dict.fromkeys(keep)) != len(keep):
        raise InvalidArgument(f"each member is kept once: {list(keep)}")
    peers = tuple(peer for peer in committed.peers if peer.uuid in keep)
    own = committed.peer(survivor)
    if own is None or own.member != VOTER or own not in peers:
        raise InvalidArgument(
            f"{survivor} must be one of the voters {_named(committed)}, and among those kept: it is to lead them"
        )
    if sorted(peers, key=_uuid) == sorted(active.peers, key=_uuid):
        raise InvalidArgument("every member of the configuration in force is kept; there is nothing to force")
    made = Configuration(peers, committed.index, max(committed.unsafe, active.unsafe, above) + 1)
    assert made.order > max(committed.order, active.order), ("a forced configuration is the newest", made)
    return made


def _named(configuration: Configuration) -> list[str]:
    return [peer.uuid for peer in configuration.peers]


def _uuid(peer: Peer) -> str:
    return peer.uuid
