"""Which stores are lost, and when an audit is due. Nothing here waits.

    lost       a store that registered once, and does not run
    fresh      a lost store that no audit has seen yet
    one        a fresh store may return within the delay; then nothing is done
    several    two fresh stores that may return yet: an audit is due at once
    forced     a trigger, a delay that is set to its present value, or the first delay of 0: an audit is due at once
    again      a store that stays lost counts as fresh each day: a mark that was lost or made without it is made again
    leaving    the host of a store is being decommissioned: an audit is due at once, and again as long as a ledger names the store
    disabled   nothing is due; losses are noticed, and what was due is due when repairs are enabled again

Times are seconds of the auditor's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

AGAIN_S = 86_400.0
LEAVING_S = 60.0  # between two audits of stores that leave; each audit reads all ledgers


class Losses:
    def __init__(self, delay_s: float, settle_until: float, since: Mapping[str, float] | None = None) -> None:
        """`since`: when an auditor before noticed stores that were lost."""
        self.delay_s = delay_s
        self.enabled = True
        self.lost: dict[str, float] = {}
        self.cancelled = 0
        self._settle_until = settle_until
        self._since = dict(since or {})
        self._audited: dict[str, float] = {}  # store -> when
        self._leaving: dict[
            str, float | None
        ] = {}  # store -> when the next audit is due, or None if no ledger names it
        self._forced = False

    # -- events ----------------------------------------------------------------------------------------------

    def on_stores(self, now: float, known: Iterable[str], running: Iterable[str]) -> None:
        runs = frozenset(running)
        absent = sorted(store for store in known if store not in runs and store not in self._leaving)
        was_pending = self.pending(now)
        self.lost = {store: self.lost.get(store, min(now, self._since.pop(store, now))) for store in absent}
        self._since = {store: since for store, since in self._since.items() if store not in runs}
        self._audited = {
            store: at for store, at in self._audited.items() if store in self.lost and now < at + AGAIN_S
        }
        if was_pending and not self.fresh:
            self.cancelled += 1

    def on_leaving(self, now: float, stores: Iterable[str]) -> None:
        """The stores whose hosts are being decommissioned; called before `on_stores`."""
        self._leaving = {store: self._leaving.get(store, now) for store in stores}

    def on_delay(self, now: float, delay_s: float, again: bool) -> None:
        """`again`: an operator has set the delay, perhaps to the value that it has."""
        if again and delay_s == self.delay_s:
            self._forced = True
        elif delay_s != self.delay_s:
            self.delay_s = delay_s
            self.lost.update((store, now) for store in self.fresh)

    def on_trigger(self) -> None:
        self._forced = True

    def on_switch(self, enabled: bool) -> None:
        self.enabled = enabled

    def on_audited(self, now: float, stores: Iterable[str], named: Container[str] = ()) -> None:
        """An audit has marked the ledgers of these stores, which were lost when it began. `named`: stores that leave, and that a ledger
        names."""
        self._audited.update((store, now) for store in stores if store in self.lost)
        self._leaving = {store: now + LEAVING_S if store in named else None for store in self._leaving}
        self._forced = False

    # -- decisions -------------------------------------------------------------------------------------------

    @property
    def fresh(self) -> list[str]:
        return [store for store in self.lost if store not in self._audited]

    @property
    def audited(self) -> list[str]:
        """Stores that are lost, and whose ledgers were marked."""
        return list(self._audited)

    def long_audited(self, now: float) -> list[str]:
        """Stores whose ledgers were marked, and that are lost for longer than the delay: writers know that they do not run."""
        return [store for store in self._audited if now >= self.lost[store] + self.delay_s]

    def due_at(self, now: float) -> float | None:
        """When the next audit is due; None: nothing is to be audited."""
        if not self.enabled:
            return None
        if self._forced:
            return now
        due = [at for at in (*self._leaving.values(), self._loss_due_at(now)) if at is not None]
        return min(due, default=None)

    def _loss_due_at(self, now: float) -> float | None:
        fresh = self.fresh
        if not fresh:
            return None
        at = now if self._several(now) else min(self.lost[store] for store in fresh) + self.delay_s
        return max(at, self._settle_until)

    def _several(self, now: float) -> bool:
        """Whether two fresh stores are lost that may return. One that is lost for longer than the delay says nothing about another:
        an auditor before may have audited it."""
        return sum(now < self.lost[store] + self.delay_s for store in self.fresh) > 1

    def to_audit(self, now: float) -> list[str]:
        """The lost stores that an audit marks now; one that may return yet is not marked because another store leaves."""
        at = self._loss_due_at(now)
        due = at is not None and at <= now
        if self._forced or (due and self._several(now)):
            return list(self.lost)
        return [store for store in self.lost if due and now >= self.lost[store] + self.delay_s]

    def is_due(self, now: float) -> bool:
        at = self.due_at(now)
        return at is not None and at <= now

    def pending(self, now: float) -> bool:
        """Whether the audit of a loss waits for its time: a check of all ledgers must not be faster."""
        at = self._loss_due_at(now) if self.enabled and not self._forced else None
        return at is not None and at > now
