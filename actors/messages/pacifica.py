"""The records of a PacificA replica on disk, and its reports. Its messages are those of stream.py.

Sources: seed 001; the PacificA paper.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

NOTHING = (0, 0)


class BallotRecord(msgspec.Struct, frozen=True, tag="pacifica"):
    """The highest ballot that this replica has entered, and its primary as far as known: durable before
    any message of that ballot leaves. The fields have the names of Raft's, because both mean the same to
    a log: the number of a leadership, and whose it is. `lacks`: a forced epoch, and the index up to which another member has
    committed entries that this replica, which led, lacked; see tablet/pacifica/older_copy.py."""

    term: int = 0
    vote: str | None = None
    lacks: tuple[int, int] = NOTHING


class PacificaView(msgspec.Struct, frozen=True, tag="pacifica"):
    """A replica's view of its group, in reports. `role`: primary, secondary, learner or inactive.
    `term`: its ballot. `leader`: the primary's uuid, or None. `lease`: the number of the lease in which a
    primary leads. `reads_from`: the index that has to be committed before a primary serves reads. `verified`: the process has shown that
    its log has everything that is committed: that of a primary which committed an entry of its own ballot, so all voters took it.
    `asks`: it has stepped down, and asks the master for a successor until it has an answer.
    `era`: the operator's word for `term`; `leased`: the replica leads only while its server has a lease."""

    era: ClassVar[str] = "ballot"
    leased: ClassVar[bool] = True

    role: str = "inactive"
    term: int = 0
    leader: str | None = None
    last_index: int = 0
    commit_index: int = 0
    lease: int = 0
    reads_from: int = 0
    verified: bool = False
    asks: bool = False

    @property
    def leads(self) -> bool:
        return self.role == "primary"
