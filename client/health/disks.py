"""Judges the disks of all roles. With a full disk, or one that does not answer, a role is not healthy; a nearly full disk is a
warning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebla.storage.space import BALLAST_BYTES
from ebla.wording import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebla.actors.messages import ServerState
    from ebla.storage.space import DiskSpace

# Free space above the server's reserve (its option disk_reserve_bytes), below which writes are soon refused.
LOW_SHARE = 0.05  # of a disk
LOW_BYTES = 192 << 20
FULL_BYTES = BALLAST_BYTES  # with less, a role gives up its ballast: nothing more is stored for certain


def full_disks(state: ServerState) -> str | None:
    """The reason why writes are refused, and the remedy; None if they are not refused."""
    full = [disk for disk in state.disks if disk.path in state.full_disks]
    return f"writes are refused until space is freed: {_left(full)}" if full else None


def hung_disks(state: ServerState) -> str | None:
    """What waits for a disk that does not answer, and the remedy; None if all answer."""
    if not state.hung_disks:
        return None
    disks = f"no answer from the disk of {', '.join(state.hung_disks)}"
    if any(disk.path in state.hung_disks for disk in state.disks[:1]):  # of its log
        return f"{disks}; examine it, or stop the server: its replicas are then copied to other hosts"
    return f"{disks}, so its tablets are not flushed; examine it, or move them with `ebla nodes drain`"


def low_disks(state: ServerState) -> str:
    """A warning, or ""."""
    low = _left(_low(state.disks, state.disk_reserve_bytes))
    return f"free space before writes are refused: {low}" if low and not state.full_disks else ""


def full_of(disks: Sequence[DiskSpace]) -> str:
    """What is left on the full disks of a master or a journal node, which keep no reserve; "" if there is space."""
    return _left([disk for disk in disks if disk.free_bytes < FULL_BYTES])


def low_of(disks: Sequence[DiskSpace]) -> str:
    """A warning about a master or a journal node, or ""."""
    low = _left(_low(disks, 0))
    return f"free space before no edit can be stored: {low}" if low and not full_of(disks) else ""


def _low(disks: Sequence[DiskSpace], reserve_bytes: int) -> list[DiskSpace]:
    return [
        disk
        for disk in disks
        if disk.free_bytes - reserve_bytes < max(LOW_BYTES, LOW_SHARE * disk.total_bytes)
    ]


def free_bytes(disks: Sequence[DiskSpace]) -> int | None:
    """The free bytes of the fullest disk."""
    return min((disk.free_bytes for disk in disks), default=None)


def _left(disks: list[DiskSpace]) -> str:
    return ", ".join(
        f"{size(disk.free_bytes)} of {size(disk.total_bytes)} left under {disk.path}" for disk in disks
    )
