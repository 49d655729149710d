"""Messages by which an operator learns why a tablet does not work, and the last resort for a PacificA tablet.

evidence    operator -> the active master: TabletRequest, for either protocol
recovery    operator -> the active master: ForceRequest, for PacificA; of Raft see repair.py
"""

from __future__ import annotations

import msgspec

from ebla.actors.replication.configuration import Configuration, Forced


class HolderEvidence(msgspec.Struct, frozen=True):
    """A server that holds or held a tablet, as the master knows it.

    `part`: voter, pre_voter or non_voter; former (it left, and may have data), tombstone (it left, and has no data), or
    stray (it is in no configuration, and reports a replica). `heartbeat_age_s`: None without a heartbeat to this master.
    `lease`: see detector/detector.py, "" if the server is unknown there; `beacon_age_s`: None without a beacon to this
    master. `state`: of its replica, by its last report; None if it reports none."""

    uuid: str
    address: str
    part: str
    alive: bool
    heartbeat_age_s: float | None
    lease: str
    beacon_age_s: float | None
    state: str | None


class TabletEvidence(msgspec.Struct, frozen=True):
    """A tablet in the catalog, and the evidence of its servers. `leader`: uuid of the leader or primary that has reported.
    `committed`: the highest index that a server has reported as committed; reports are rare, so more may be. `grace_s`: a
    server counts as ended after this time without a beacon. `in_doubt`: why a tablet of an accepted older catalog gets no primary yet, or ""."""

    tablet: str
    table: str
    state: str
    replication: str
    replicas: int
    min_members: int
    configuration: Configuration | None
    leader: str | None
    committed: int
    holders: tuple[HolderEvidence, ...]
    forced: tuple[Forced, ...] = ()
    grace_s: float = 0.0
    in_doubt: str = ""


class ForceRequest(msgspec.Struct, frozen=True):
    """Gives up all members of a PacificA tablet but `survivor` (uuid), whose replica becomes the primary.

    `ballot`, `unsafe`: compare-and-set on the configuration in the catalog. The rest is recorded: see Forced. Answered with
    MembersReply once the configuration is durable. Idempotent: the same request again gets the same answer."""

    tablet: str
    survivor: str
    ballot: int
    unsafe: int
    by: str
    last_index: int
    committed: int
