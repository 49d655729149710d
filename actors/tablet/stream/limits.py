"""How much may be under way to a peer, and how often a leader shows that it lives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ebla.storage.errors import InvalidArgument


@dataclass(frozen=True, kw_only=True)
class StreamLimits(ABC):
    heartbeat_s: float = 0.15
    append_bytes_max: int = 1 << 20  # one message; a single larger entry travels alone
    inflight_max: int = 4  # messages with entries under way to one peer
    inflight_bytes_max: int = 8 << 20
    quiesce_after_s: float = float("inf")  # without writes; see engine/quiescence.py

    def __post_init__(self) -> None:
        for holds, remedy in self.rules():
            if not holds:
                raise InvalidArgument(f"{remedy}; got {self}")

    def rules(self) -> list[tuple[bool, str]]:
        """The conditions that must hold, each with its remedy."""
        return [
            (self.heartbeat_s > 0, "heartbeat_s must be above 0"),
            (self.append_bytes_max > 0, "append_bytes_max must be above 0"),
            (self.inflight_max > 0, "inflight_max must be above 0"),
            (self.inflight_bytes_max > 0, "inflight_bytes_max must be above 0"),
            (self.quiesce_after_s > 0, "quiesce_after_s must be above 0"),
        ]

    @property
    @abstractmethod
    def patience_s(self) -> float:
        """The time after which the next status message is sent although the last one has no answer."""

    @property
    @abstractmethod
    def absent_s(self) -> float:
        """The time without any answer of a peer's server after which its group may be quiescent without it."""
