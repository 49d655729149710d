"""The bandwidth that all copies from a server share: chunks leave one after the other, each when it is due.

A chunk is charged once, when it is made, and not when it is fetched again. A fetch long before the
chunk is due is refused with a time to wait, since callers abandon calls that take long. The charge
of unsent chunks is returned when their session ends.
"""

from __future__ import annotations

from ebla.actors import errors
from ebla.actors.world import Clock

WAIT_S_MAX = 2.0  # well below the time that a call for a chunk may take


class Bandwidth:
    """The shared bandwidth. `bytes_per_s` 0: no limit."""

    def __init__(self, clock: Clock, bytes_per_s: int) -> None:
        self.clock = clock
        self.bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def take(self, size_bytes: int) -> float:
        """Charge a chunk, and return the time when it is due, after all chunks that were charged before."""
        assert size_bytes >= 0, ("a chunk has a size", size_bytes)
        now = self.clock.monotonic()
        if not self.bytes_per_s:
            return now
        self._free_at = max(now, self._free_at) + size_bytes / self.bytes_per_s
        assert self._free_at >= now, ("a chunk leaves after it is made", self._free_at, now)
        return self._free_at

    def give_back(self, size_bytes: int, due_at: float) -> None:
        """Return the charge of a chunk; a no-op if the chunk has left already."""
        if self.bytes_per_s and due_at > self.clock.monotonic():
            self._free_at -= size_bytes / self.bytes_per_s

    async def until(self, due_at: float, ask_again_s: float) -> None:
        """Wait until `due_at`. Raises Throttled if that is far off; the caller should ask again
        within `ask_again_s`."""
        wait_s = due_at - self.clock.monotonic()
        if wait_s > WAIT_S_MAX:
            raise errors.Throttled(
                f"copies from this server are limited to {self.bytes_per_s} bytes per second",
                limit="copy_bytes_per_s",
                retry_after_s=min(wait_s, ask_again_s),
            )
        if wait_s > 0:
            await self.clock.sleep(wait_s)
