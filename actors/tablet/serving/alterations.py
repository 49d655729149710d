"""Alterations, drops and recalls of a tablet's table on their way to its replicas.

The master repeats the request to the leader until a report shows the version (actors/master/errands/errands.py). The
leader appends the alteration to the tablet's log: earlier entries belong to the older version, later ones to the newer,
on every replica alike. An alteration that arrives twice, or late, has a version that the replica already has, and
changes nothing.
"""

from __future__ import annotations

from ebla.actors import errors
from ebla.actors.messages import AlterTabletRequest
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.engine.waits import within
from ebla.actors.world import World
from ebla.storage.logs.entries import ALTER
from ebla.storage.rows.alteration import encode
from ebla.storage.rows.codecs import codec_of

ALTER_S = 5.0  # for the entry to be committed and applied; then the master tries again


async def alter(world: World, rounds: Rounds, replica: Replica, request: AlterTabletRequest) -> None:
    """Apply the alteration on this leader. Idempotent. Raises NotLeader, OutcomeUnknown, InvalidArgument."""
    alteration = request.alteration
    version = alteration.schema.version
    replica.require_running()
    if replica.rows.schema.version >= version:
        return
    alteration.schema.validate()
    codec_of(alteration.schema)  # an alteration that this server could not apply must not be in the log
    await world.faults.here("tablet.alter.before_entry")
    replica.require_running()
    index = _under_way(replica, version)
    if index is None:
        now = world.now()
        index = rounds.step(replica, replica.propose, now, ALTER, encode(alteration)).index
        replica.alteration_asked = (replica.core.term, version, index)
    late = errors.OutcomeUnknown(
        f"version {version} of the table of tablet {replica.tablet} was not committed within {ALTER_S:g} s, and may be "
        "later; try again"
    )
    await within(world.clock, replica.applied(index), ALTER_S, late)
    replica.require_running()
    if replica.rows.schema.version < version:
        raise replica.not_leader()  # another leader's entries have replaced it


def _under_way(replica: Replica, version: int) -> int | None:
    """The index of the entry, if this leader has already appended it."""
    term, appended, index = replica.alteration_asked
    pending = replica.store.applied.index < index <= replica.core.last_index
    return index if pending and (term, appended) == (replica.core.term, version) else None


def require_served(replica: Replica, now: float) -> None:
    """Raise TableDropped if the table is certainly kept for recall. A follower or a new leader, which may not have applied a
    recall yet, raises NotLeader or Unavailable."""
    refusal = replica.rows.refusal()
    if refusal is None:
        return
    if replica.core.role != "leader":
        raise replica.not_leader()
    if replica.store.applied.index < replica.core.read_index(now):
        raise errors.Unavailable(f"tablet {replica.tablet} has not yet applied all of its log; try again")
    raise refusal
