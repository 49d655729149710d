"""What replicas of every replication protocol say to each other and keep: unions over the protocols.

Only this module names the messages of a protocol. A second protocol adds its types to each union with `|`, and a room
beside `actors/tablet/raft/`.
"""

from __future__ import annotations

from ebla.actors.messages import raft

Request = raft.Request
Answer = raft.Answer
Record = raft.HardState  # what a replica may never forget
View = raft.RaftView  # what a replica reports of its group
