"""Settings of an auditor. Times are in seconds."""

from __future__ import annotations

import msgspec

from ebla.storage.errors import InvalidArgument, require_positive


class AuditorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`delay_s`: how long one lost store may return before its ledgers are marked, unless an operator has set another delay.
    A restart takes some seconds, and copying all that a host keeps takes hours; writers replace a silent store by themselves
    after seconds, and what is closed stays readable with one copy less. So a minute costs little and a restart is no loss.
    `settle_s`: a new auditor judges nothing before: stores that start with it need time to register. `check_s`: between two
    checks of all ledgers; `verify_percentage`: of their entries, beside the first and the last of each store; `check_pause_s`:
    between two ledgers of a check. `count_s`: between two steps of the counted time (shared/counting.py), each of which is an edit of
    the masters' journal; old records of logs are deleted up to three steps late."""

    masters: tuple[str, ...] = ("master/0",)
    delay_s: float = 60.0
    settle_s: float = 10.0
    check_s: float = 604_800.0
    verify_percentage: float = 0.0
    check_pause_s: float = 0.01
    count_s: float = 10.0
    look_s: float = 10.0  # between two looks of the auditor whether it is still the elected one

    def validate(self) -> None:
        may_be_zero = ("delay_s", "settle_s", "verify_percentage")
        require_positive(self, tuple(name for name in self.__struct_fields__ if name not in may_be_zero))
        if self.delay_s < 0 or self.settle_s < 0 or not 0 <= self.verify_percentage <= 100:
            raise InvalidArgument(
                "delay_s and settle_s must not be negative, and verify_percentage must be from 0 to 100"
            )
