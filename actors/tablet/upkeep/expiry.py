"""The leader has the answers of idle clients forgotten, by an entry of the log.

The log, and not the clock or the setting of a replica, says whose they are: every replica forgets the same ones at the same place.
A retry that stands behind the entry is a new request on all of them.
"""

from __future__ import annotations

import msgspec

from ebla.actors.errors import NotLeader
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.storage.logs.entries import EXPIRE

STEPS = 60  # answers are kept longer by this part of their time at most, so that one entry ends those of many clients


def expire(rounds: Rounds, replica: Replica, now: float, retention_us: int) -> None:
    """Nothing happens where this replica does not lead, or an entry for it is under way."""
    applied = replica.store.applied
    before_us = applied.time_us - retention_us
    under_way = replica.expiry_asked[0] == replica.core.term and replica.expiry_asked[1] > applied.index
    if not replica.leads or under_way or not replica.store.results.expired(before_us - retention_us // STEPS):
        return
    try:
        entry = rounds.step(replica, replica.propose, now, EXPIRE, msgspec.msgpack.encode(before_us))
    except NotLeader:
        return  # it hands over
    replica.expiry_asked = entry.term, entry.index
