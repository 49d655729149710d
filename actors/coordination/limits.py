"""How much the namespace may hold. It is in the memory of every master, and in every checkpoint: for names, not for data."""

from __future__ import annotations

import msgspec

from ebla.storage.errors import InvalidArgument

# Changes that a client has under way in one session: their numbers are no further apart. Whatever a client believes to be its
# lowest unanswered one, it then waits for fewer than twice as many answers.
UNDER_WAY_MAX = 500


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`session_s_min`, `session_s_max`: what timeouts sessions may ask for. `polls_max`: calls that wait for a change at one
    time; `poll_s_max`: how long one of them may wait. `bytes_max`: of all paths and data together."""

    session_s_min: float = 1.0  # a client waits 0.8 s for a master that is silent, then asks the next
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
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise InvalidArgument(
                    f"coordination.{name} must be greater than zero, not {getattr(self, name)}"
                )
        if self.unanswered_max < 2 * UNDER_WAY_MAX:
            raise InvalidArgument(
                f"coordination.unanswered_max must be {2 * UNDER_WAY_MAX} at least, not {self.unanswered_max}: a client has "
                f"up to {UNDER_WAY_MAX} changes under way"
            )
