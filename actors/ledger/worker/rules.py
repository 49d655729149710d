"""Which step repairs which damage of a ledger, and when a repair is tried again. Nothing here waits.

fill      the store runs, and lacks entries or has them damaged: they are copied to it
move      the store is lost, or its host is being decommissioned: its entries are copied to another store, which takes its place in
          the segment
recover   a recovery has begun, and has not closed the ledger; or the same of a fragment that is still written: after the grace period the ledger is recovered, and then closed. For a host
          that is decommissioned this is done only if there is another store, since the writer has to end
wait      the store does not run, and the auditor does not count it as lost; or it does not answer; or the grace period runs
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import EntryLost, RecoveryFailed
from ebla.actors.ledger.handles.checking import LACKING, MISSING, Damage, Findings, Unreadable
from ebla.actors.ledger.handles.registry import StoreInfo
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared.kept import Mark
from ebla.actors.ledger.shared.repairs import LOST, NO_STORE, WAITS, Note
from ebla.actors.world import Random
from ebla.storage.errors import EblaError

US = 1_000_000
RANGES_MAX = 20  # of lost entries, in a note
KINDS = (WAITS, NO_STORE, LOST)  # the worst is the last


class Halted(Exception):
    """The repair ends at a batch boundary: repairs are disabled, the lock may be lost, or the role stops."""


class Reason(msgspec.Struct, frozen=True):
    """Why a ledger is not whole; `entries` and `missing` as in a note."""

    text: str
    kind: str = WAITS
    entries: tuple[tuple[int, int], ...] = ()
    missing: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    """`reasons`: what is waited for. `wait_s`: until the grace period ends."""

    fills: tuple[Damage, ...] = ()
    moves: tuple[Damage, ...] = ()
    recovers: bool = False
    reasons: tuple[Reason, ...] = ()
    wait_s: float | None = None

    @property
    def acts(self) -> bool:
        return bool(self.fills or self.moves or self.recovers)


def plan(
    found: Metadata, mark: Mark, findings: Findings, running: Sequence[StoreInfo], grace_s: float
) -> Plan:
    """The steps that these findings require, and the reasons to wait. `grace_s`: the rest of the grace period."""
    fills: list[Damage] = []
    moves: list[Damage] = []
    reasons = [Reason(f"store {store} does not answer: {why}") for store, why in findings.unknown]
    recovers, wait_s = found.state == meta.IN_RECOVERY, None
    for damage in findings.damaged:
        if damage.why == LACKING and not damage.another:
            fills.append(damage)
        elif damage.why == MISSING and damage.store not in mark.lost:
            reasons.append(
                Reason(
                    f"store {damage.store} does not run, and the auditor does not count it as lost yet: start it, or wait"
                )
            )
        elif damage.fragment.closed:
            moves.append(damage)
        elif found.state == meta.OPEN and not able(running, damage.fragment.stores):
            # Its writer goes on with fewer stores. If the ledger were closed, there would be too few stores for the next one.
            reasons.append(no_store(damage.store))
        elif found.state == meta.IN_RECOVERY or grace_s <= 0:
            recovers = True
        else:
            wait_s = grace_s
            reasons.append(Reason(f"its writer may replace store {damage.store} itself"))
    unique = tuple(dict.fromkeys(reasons))
    return Plan(tuple(fills), tuple(moves), recovers, unique, wait_s)


def able(running: Sequence[StoreInfo], used: Iterable[str]) -> list[StoreInfo]:
    """The stores outside of the segment that take entries."""
    taken = list(used)
    return [store for store in running if store.uuid not in taken and store.able]


def no_store(old: str) -> Reason:
    text = f"no other store that could replace store {old} runs and takes entries: start another store"
    return Reason(text, NO_STORE)


def lost(found: Unreadable) -> Reason | None:
    """Why entries cannot be copied; None if a silent store may have them."""
    if not found.entries or found.silent:
        return None
    listed = ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in found.entries[:RANGES_MAX])
    more = ", ..." if len(found.entries) > RANGES_MAX else ""
    total = sum(last - first + 1 for first, last in found.entries)
    word = "entry has" if total == 1 else "entries have"
    why = "every store that should have them lacks them or has them damaged"
    if found.missing:
        why = f"the stores that should have them do not run: {', '.join(found.missing)}"
    text = f"{total} {word} no readable copy ({listed}{more}): {why}"
    return Reason(text, LOST, found.entries[:RANGES_MAX], found.missing)


def endless(found: Metadata, error: EblaError, running: Iterable[str]) -> Reason | None:
    """Why a ledger that is not closed cannot be closed: the stores that do not run may have its last entries, or all copies of one are
    damaged."""
    if isinstance(error, EntryLost) and error.entry is not None:
        return Reason(error.message, LOST, ((error.entry, error.entry),))
    if not isinstance(error, RecoveryFailed):
        return None
    up, newest = frozenset(running), found.segments[-1].stores
    there = [position for position, store in enumerate(newest) if store in up]
    if error.entry is not None and error.silent and not any(store in up for store in error.silent):
        return Reason(
            f"its end cannot be decided: no store that runs has a sound copy of entry {error.entry}, and these do not run: "
            + ", ".join(error.silent),
            LOST,
            ((error.entry, error.entry),),
            error.silent,
        )
    if meta.covers(found, there):
        return None
    missing = tuple(store for store in newest if store not in up)
    return Reason(
        f"its end cannot be decided: too many of its stores do not run: {', '.join(missing)}",
        LOST,
        (),
        missing,
    )


def target(running: Sequence[StoreInfo], used: Iterable[str], own: str, random: Random) -> StoreInfo | None:
    """The store that takes the place of another one: this host's, or one by chance."""
    found = able(running, used)
    if not found:
        return None
    near = [store for store in found if store.address == own]
    return near[0] if near else random.choice(found)


class Seen:
    """Since when this worker has seen things as they are. It counts by its own clock: those of other hosts may differ."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}

    def seconds(self, ledger: int, state: int, now: float) -> float:
        """For how long the ledger's thing has had this state."""
        seen = self._seen.get(ledger)
        if seen is None or seen[0] != state:
            seen = self._seen[ledger] = (state, now)
        return now - seen[1]

    def keep(self, ledgers: Iterable[int]) -> None:
        """Forget the others."""
        kept = frozenset(ledgers)
        self._seen = {ledger: seen for ledger, seen in self._seen.items() if ledger in kept}


def is_due(note: Note, version: int, running: Iterable[str], seen_s: float) -> bool:
    """Whether a marked ledger is tried now: its pause is over, or there is news about it. `seen_s`: the age of the note."""
    if note.mark != version or seen_s >= note.pause_s:
        return True
    return any(store not in note.running for store in running)


def noted(
    before: Note | None,
    reasons: Sequence[Reason],
    version: int,
    running: Iterable[str],
    worker: str,
    now_us: int,
    wait_s: float | None,
    backoff_s: float,
    backoff_s_max: float,
) -> Note:
    """The note about a ledger that is not whole. `wait_s`: when to try again at the latest, if that is known."""
    tries = before.tries + 1 if before is not None and before.mark == version else 1
    pause_s = min(backoff_s_max, backoff_s * 2 ** min(tries - 1, 20) if wait_s is None else wait_s)
    since_us = before.since_us if before is not None else now_us
    worst = max(reasons, key=lambda reason: KINDS.index(reason.kind))
    return Note(
        "; ".join(dict.fromkeys(reason.text for reason in reasons)),
        since_us,
        tries,
        pause_s,
        now_us + int(pause_s * US),
        version,
        tuple(sorted(running)),
        worker,
        worst.kind,
        worst.entries,
        worst.missing,
    )
