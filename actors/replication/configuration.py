"""The members of a tablet: one configuration follows another, and of two that are committed one is newer.

Source: seed 000 (member types, promote, replace); Kudu's RaftConfigPB.
"""

from __future__ import annotations

import msgspec

VOTER, NON_VOTER = "voter", "non_voter"

PRE_VOTER = "pre_voter"  # how a non-voter that shall become a voter is shown

Order = tuple[int, int]  # of configurations: how often one was forced, then the index


class Peer(msgspec.Struct, frozen=True):
    """A member of the configuration: the server's uuid (who) and address (where).

    `promote`: a non-voter that the leader makes a voter as soon as it has caught up (the seed's PRE_VOTER). `replace`: a voter
    that goes as soon as there are enough others.
    """

    uuid: str
    address: str
    member: str = VOTER
    promote: bool = False
    replace: bool = False

    @property
    def kind(self) -> str:
        """What people are shown: voter, pre_voter or non_voter."""
        return PRE_VOTER if self.member == NON_VOTER and self.promote else self.member


class Configuration(msgspec.Struct, frozen=True):
    """The group's members. `index` is the log index of the entry that made it, -1 as created. `unsafe`: how often an
    operator forced one on the group without a majority; what follows inherits the mark, and is newer than anything without it: a
    survivor's log may have ended long before that of the others."""

    peers: tuple[Peer, ...]
    index: int = -1
    unsafe: int = 0

    @property
    def order(self) -> Order:
        """The greater, the newer."""
        return self.unsafe, self.index

    def peer(self, uuid: str) -> Peer | None:
        for peer in self.peers:
            if peer.uuid == uuid:
                return peer
        return None

    def voters(self) -> tuple[Peer, ...]:
        return tuple(peer for peer in self.peers if peer.member == VOTER)

    @property
    def majority(self) -> int:
        return len(self.voters()) // 2 + 1
