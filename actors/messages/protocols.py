"""The messages and durable records of all replication protocols: unions over the protocols.

Only this module names the messages of a protocol. A second protocol adds its types to each union
with `|`, and a room beside `actors/tablet/raft/`.
"""

from __future__ import annotations

from ebla.actors.messages import raft

Request = raft.Request
Answer = raft.Answer
HardState = raft.HardState  # the part of a core's state that a replica must never lose
View = raft.RaftView  # a replica's report of its group
