"""What all copies from a server may take of its network together: chunks leave one after the other, each when it is due.

A chunk is paid for once, when it is made, and not when it is asked for again. Who asks long before it is due is told to come
back, since a call that takes long is given up by who made it. What has not left when its session ends is given back.
"""

from __future__ import annotations

from ebla.actors import errors
from ebla.actors.world import Clock

WAIT_S_MAX = 2.0  # well below the time that a call for a chunk may take


class Bandwidth:
    """`bytes_per_s` 0: as much as there is."""

    def __init__(self, clock: Clock, bytes_per_s: int) -> None:
        self.clock = clock
        self.bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def take(self, size_bytes: int) -> float:
        """When so much has left, behind all that was taken before."""
        assert size_bytes >= 0, ("a chunk has a size", size_bytes)
        now = self.clock.monotonic()
        if not self.bytes_per_s:
            return now
        self._free_at = max(now, self._free_at) + size_bytes / self.bytes_per_s
        assert self._free_at >= now, ("a chunk leaves after it is made", self._free_at, now)
        return self._free_at

    def give_back(self, size_bytes: int, due_at: float) -> None:
        """Unless it has left already."""
        if self.bytes_per_s and due_at > self.clock.monotonic():
            self._free_at -= size_bytes / self.bytes_per_s

    async def until(self, due_at: float, ask_again_s: float) -> None:
        """Raises Throttled if that is far off; who asks comes back within `ask_again_s`."""
        wait_s = due_at - self.clock.monotonic()
        if wait_s > WAIT_S_MAX:
            raise errors.Throttled(
                f"copies from this server are limited to {self.bytes_per_s} bytes per second",
                limit="copy_bytes_per_s",
                retry_after_s=min(wait_s, ask_again_s),
            )
        if wait_s > 0:
            await self.clock.sleep(wait_s)
