"""The lease of one journal on one node: the node promises the holder to help no other for a while.

A node that has granted a lease promises no later epoch to another until held_s of its own clock has
passed. The holder counts a shorter time, from before it asked (writer/holder.py). So before a majority
has promised a later epoch, the holder of the earlier epoch has stopped using its lease, as long as no
clock runs faster than another by held_s / lease_s.

Only reads depend on the lease: writes are fenced by the epoch itself. The grant is in memory only; the
longest time that was granted is on disk, and a node promises no other an epoch for as long after a start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import LeaseHeld, StaleEpoch
from ebla.actors.world import Clock


class _Grant(NamedTuple):
    """`successor`: the lease was released, and until `until` only this holder is promised an epoch."""

    claim: m.Claim
    epoch: int
    until: float
    successor: str | None = None


class Lease:
    """The lease of one journal on one node. Never waits."""

    def __init__(self, name: str, clock: Clock, held_ms: int) -> None:
        self._name = name
        self._clock = clock
        self._grant: _Grant | None = None
        self._quiet_until = clock.monotonic() + held_ms / 1000
        self._promising = 0
        self._helped: str | None = None

    def help(self, holder: str) -> None:
        """Do not make this holder wait: the lease that is not over yet was its own."""
        self._helped = holder

    def require_free(self, claim: m.Claim | None) -> None:
        """Raise LeaseHeld if a promise now could let two hold the lease at once."""
        left_s = self._left_s()
        if left_s > 0 and (claim is None or claim.holder != self._successor()):
            holder = None if self._grant is None else self._grant.claim.holder
            raise LeaseHeld(
                f"the lease of journal {self._name} is held by {holder or 'an unknown master, since before this node was started'} "
                f"for {left_s:.3f} s more; ask again then",
                journal=self._name,
                holder=holder,
                left_s=left_s,
            )

    @contextmanager
    def promising(self, epoch: int) -> Iterator[None]:
        """Refuse leases to older epochs while the promise is on its way to the disk."""
        self._promising = epoch
        try:
            yield
        finally:
            self._promising = 0

    def grant(self, epoch: int, claim: m.Claim, promised: int) -> None:
        """Grant the lease for `epoch`.

        Raises StaleEpoch if a later epoch is promised here, or about to be, or was granted the lease (then
        a majority of others has promised it). A late renewal of an older holder must not replace such a
        grant, which the later holder may release.
        """
        granted = 0 if self._grant is None else self._grant.epoch
        promised = max(promised, self._promising, granted)
        if epoch < promised:
            raise StaleEpoch(
                f"epoch {epoch} is over: this node knows of epoch {promised}; stop serving",
                journal=self._name,
                epoch=epoch,
                promised=promised,
            )
        self._grant = _Grant(claim, epoch, self._clock.monotonic() + claim.held_ms / 1000)
        self._helped = None

    def release(self, token: str, successor: str | None) -> None:
        """End the lease for its holder, which no longer uses it.

        A named successor is promised an epoch at once, others only after a while.
        """
        grant = self._grant
        if grant is not None and grant.claim.token == token:
            kept_s = 0.0 if successor is None else grant.claim.held_ms / 1000
            self._grant = grant._replace(until=self._clock.monotonic() + kept_s, successor=successor)

    def state(self) -> m.LeaseState:
        grant = self._grant
        if grant is None:
            return m.LeaseState(None, 0, self._left_s(), self._successor())
        return m.LeaseState(grant.claim.holder, grant.epoch, self._left_s(), self._successor())

    def _successor(self) -> str | None:
        named = None if self._grant is None else self._grant.successor
        return named or self._helped

    def _left_s(self) -> float:
        """Return for how long only the successor is promised an epoch."""
        until = self._quiet_until if self._grant is None else self._grant.until
        return max(0.0, until - self._clock.monotonic())
