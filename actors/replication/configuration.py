"""The members of a tablet. One configuration follows another; of two committed ones, one is newer.

Source: seed 000 (member types, promote, replace); Kudu's RaftConfigPB.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

RAFT, PACIFICA = "raft", "pacifica"  # the replication protocols, by the words of clients

VOTER, NON_VOTER = "voter", "non_voter"

FIRST_BALLOT = 1  # of a PacificA tablet, whose replicas are created with it

PRE_VOTER = "pre_voter"  # the displayed kind of a non-voter that shall become a voter

PREFIX_MIN = 4  # characters of a uuid or node id that an operator gives
NODE_ID_CHARACTERS = 56  # of Ray's node ids

PEERS_MAX = 4096  # kept for other configurations of this process

Order = tuple[int, int]  # of configurations: the forced epoch, then the index


def names(word: str, uuid: str, address: str) -> bool:
    """Whether `word` names the server: it is the uuid or the beginning of it, or the address or the host in it. Of a host without
    a label, whose name is its node id, the beginning will do, too."""
    host = address.rpartition("/")[2]
    if word in (uuid, address, host):
        return bool(word)
    identifiers = (uuid, host) if len(host) == NODE_ID_CHARACTERS else (uuid,)
    return len(word) >= PREFIX_MIN and any(each.startswith(word) for each in identifiers)


# Peers and configurations can be in no reference cycle. A master has 100,000s of them: the garbage collector need not visit them.
class Peer(msgspec.Struct, frozen=True, gc=False):
    """A member of the configuration: the server's uuid (identity) and address (place).

    `promote`: a non-voter that the leader makes a voter as soon as it has caught up (the seed's
    PRE_VOTER). `replace`: a voter that is removed as soon as there are enough others.
    """

    uuid: str
    address: str
    member: str = VOTER
    promote: bool = False
    replace: bool = False

    @property
    def kind(self) -> str:
        """The displayed kind: voter, pre_voter or non_voter."""
        return PRE_VOTER if self.member == NON_VOTER and self.promote else self.member


class Configuration(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The group's members. `index`: the log index of its entry, -1 for the configuration at
    creation; with a `primary`, the ballot. `unsafe`: the forced epoch, which is how often an operator forced a configuration on
    the group without a majority. Later configurations inherit it, and are newer than any of a lower
    forced epoch, even one with a higher index: a survivor's log may have ended long before the logs
    of the others.

    `primary`: of a PacificA tablet, the voter that the master appointed to lead in this ballot; None if the members
    elect. `min_members`: with fewer voters such a tablet takes no writes. `settled`: a ballot whose first entry all voters hold; a
    replica whose log ends before is an old copy, and leads no more."""

    peers: tuple[Peer, ...]
    index: int = -1
    unsafe: int = 0
    primary: str | None = None
    min_members: int = 0
    settled: int = 0

    @property
    def order(self) -> Order:
        """The key by which configurations are compared: the greater, the newer."""
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


@lru_cache(PEERS_MAX)
def _shared(peer: Peer) -> Peer:
    return peer


def with_shared_peers(configuration: Configuration) -> Configuration:
    """The configuration, with the one instance of equal peers: a server has thousands of groups, and few peers."""
    return msgspec.structs.replace(configuration, peers=tuple(map(_shared, configuration.peers)))


class Forced(msgspec.Struct, frozen=True):
    """A configuration that an operator forced on a PacificA tablet, as the catalog keeps it for ever.

    `ballot`: of that configuration, which has `survivor` alone; `given_up`: all other members of the one before.
    `by`: the operator, and `at_us` the wall time, both for display only. `last_index`: the end of the survivor's log;
    `committed`: the highest index that was known to be committed anywhere. Both are as the operator saw them."""

    ballot: int
    survivor: Peer
    given_up: tuple[Peer, ...]
    by: str
    at_us: int
    last_index: int
    committed: int
