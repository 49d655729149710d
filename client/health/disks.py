"""Judges the disks of a server: with a full disk it refuses writes and is not healthy; a nearly full disk is a warning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebla.wording import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebla.actors.messages import ServerState
    from ebla.storage.space import DiskSpace

# Free space above the server's reserve (its option disk_reserve_bytes), below which writes are soon refused.
LOW_SHARE = 0.05  # of a disk
LOW_BYTES = 192 << 20


def full_disks(state: ServerState) -> str | None:
    """The reason why writes are refused, and the remedy; None if they are not refused."""
    full = [disk for disk in state.disks if disk.path in state.full_disks]
    return f"writes are refused until space is freed: {_left(full)}" if full else None


def low_disks(state: ServerState) -> str:
    """A warning, or ""."""
    low = [
        disk
        for disk in state.disks
        if disk.free_bytes - state.disk_reserve_bytes < max(LOW_BYTES, LOW_SHARE * disk.total_bytes)
    ]
    return "" if state.full_disks or not low else f"free space before writes are refused: {_left(low)}"


def free_bytes(disks: Sequence[DiskSpace]) -> int | None:
    """The free bytes of the fullest disk."""
    return min((disk.free_bytes for disk in disks), default=None)


def _left(disks: list[DiskSpace]) -> str:
    return ", ".join(
        f"{size(disk.free_bytes)} of {size(disk.total_bytes)} left under {disk.path}" for disk in disks
    )
