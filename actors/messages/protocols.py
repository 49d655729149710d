"""The messages and durable records of all replication protocols: unions over the protocols.

Only this module names the messages of a protocol. Each protocol adds its types to each union with
`|`, and has a room below `actors/tablet/`.
"""

from __future__ import annotations

from ebla.actors.messages import raft
from ebla.actors.messages.pacifica import BallotRecord, PacificaView

Request = raft.Request
Answer = raft.Answer
HardState = raft.HardState | BallotRecord  # the part of a core's state that a replica must never lose
View = raft.RaftView | PacificaView  # a replica's report of its group
