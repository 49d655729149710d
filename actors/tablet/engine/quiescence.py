"""The stance of a replica in a quiescent group, and the contacts between servers that the group relies on.

A group without writes becomes quiescent: its leader and its followers send nothing, and time does not pass for them. Leases and
elections then rely on messages between servers (liveness.py), one for each pair of servers and interval, for any number of groups.
A core reads the contacts before every event, so it never decides on less than it knew when it became quiescent.

Sources: CockroachDB's quiescence and store liveness, TiKV's hibernated regions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import msgspec


class Stance(msgspec.Struct, frozen=True):
    """A replica's part in the quiescence of its group. A core replaces the object with every change.

    `quiescent`: it sends nothing, and no time passes for it. `follows`: of a quiescent follower, the leader whose server's messages
    stand for the leader's. `relying`: of a leader, the peers that may be quiescent on its word; once it is quiescent itself,
    all of them are. `absent`: of a quiescent leader, the other peers: their servers had not answered for long.
    """

    quiescent: bool = False
    follows: str | None = None
    relying: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


AWAKE = Stance()


class Answered(NamedTuple):
    """The latest liveness message that a server answered: when it was sent, and when the answer came."""

    sent_at: float
    at: float


@dataclass(eq=False)
class Contacts:
    """The contacts with other servers (by uuid), as cores see them. `received`: when the latest liveness message of a server came.
    `paused_until`: the end of this process's last pause, in which it could take no answers. `watched_at`: when this server last
    watched for pauses, which it does every heartbeat's time."""

    answered: Mapping[str, Answered]
    received: Mapping[str, float]
    paused_until: float = float("-inf")
    watched_at: float = float("inf")


NO_CONTACTS = Contacts(MappingProxyType({}), MappingProxyType({}))
