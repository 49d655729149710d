"""Limits of the namespace, which is in the memory of every master and in every checkpoint: for names, not for data."""

from __future__ import annotations

import msgspec

from ebla.storage.errors import InvalidArgument, require_positive

# Changes that a client has under way in one session: their numbers differ by less. So a client waits for fewer than twice
# as many answers, even if it knows its lowest unanswered number late.
UNDER_WAY_MAX = 500


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`session_s_min`, `session_s_max`: limits of a session's timeout. `polls_max`: concurrent calls that wait for a change;
    `poll_s_max`: their longest wait. `bytes_max`: of all paths and data together."""

    session_s_min: float = 1.0  # a client waits 0.8 s for a silent master, then calls the next
    session_s_max: float = 3600.0
    sessions_max: int = 10_000
    nodes_max: int = 100_000
    children_max: int = 10_000
    data_bytes_max: int = 64 << 10
    bytes_max: int = 64 << 20
    operations_max: int = 100
    unanswered_max: int = 1000
    polls_max: int = 500
    poll_s_max: float = 30.0

    def validate(self) -> None:
        require_positive(self, self.__struct_fields__, "coordination.")
        if self.unanswered_max < 2 * UNDER_WAY_MAX:
            raise InvalidArgument(
                f"coordination.unanswered_max must be {2 * UNDER_WAY_MAX} at least, not {self.unanswered_max}: a client has "
                f"up to {UNDER_WAY_MAX} changes under way"
            )
