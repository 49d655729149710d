"""Which step repairs which damage of a ledger, and when a repair is tried again. Nothing here waits.

fill      the store runs, and lacks entries or has them damaged: they are copied to it
move      the store is lost: its entries are copied to another store, which takes its place in the segment
recover   the store is lost, and the fragment is still written: after the grace period the ledger is recovered, and then closed
wait      the store does not run, and the auditor does not count it as lost; or it does not answer; or the grace period runs
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.handles.checking import MISSING, Damage, Findings
from ebla.actors.ledger.handles.registry import StoreInfo
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared.kept import Mark
from ebla.actors.ledger.shared.repairs import Note
from ebla.actors.world import Random

US = 1_000_000


class Halted(Exception):
    """The repair ends at a batch boundary: repairs are disabled, the lock may be lost, or the role stops."""


class Plan(msgspec.Struct, frozen=True):
    """`reasons`: what is waited for. `until_us`: when the grace period ends."""

    fills: tuple[Damage, ...] = ()
    moves: tuple[Damage, ...] = ()
    recovers: bool = False
    reasons: tuple[str, ...] = ()
    until_us: int | None = None

    @property
    def acts(self) -> bool:
        return bool(self.fills or self.moves or self.recovers)


def plan(found: Metadata, mark: Mark, findings: Findings, now_us: int, grace_us: int) -> Plan:
    """What is to be done about these findings, and what must be waited for."""
    fills: list[Damage] = []
    moves: list[Damage] = []
    reasons = [f"store {store} does not answer: {why}" for store, why in findings.unknown]
    recovers, until_us = False, None
    for damage in findings.damaged:
        if damage.why != MISSING and not damage.another:
            fills.append(damage)
        elif damage.why == MISSING and damage.store not in mark.lost:
            reasons.append(
                f"store {damage.store} does not run, and the auditor does not count it as lost yet: start it, or wait"
            )
        elif damage.fragment.closed:
            moves.append(damage)
        elif found.state == meta.IN_RECOVERY or now_us >= mark.newest_us + grace_us:
            recovers = True
        else:
            until_us = mark.newest_us + grace_us
            reasons.append(f"its writer may replace store {damage.store} itself")
    unique = tuple(dict.fromkeys(reasons))
    return Plan(tuple(fills), tuple(moves), recovers, unique, until_us)


def target(running: Sequence[StoreInfo], used: Iterable[str], own: str, random: Random) -> StoreInfo | None:
    """The store that takes the place of a lost one: this host's, or one by chance; outside of the segment, with space."""
    taken = list(used)
    able = [store for store in running if store.uuid not in taken and not store.read_only]
    if not able:
        return None
    near = [store for store in able if store.address == own]
    return near[0] if near else random.choice(able)


def is_due(note: Note | None, version: int, running: Iterable[str], now_us: int) -> bool:
    """Whether a marked ledger is tried now: its pause is over, or there is news about it. A clock that was set back ends the
    pause, too."""
    if note is None or note.mark != version or not note.since_us <= now_us < note.retry_us:
        return True
    return any(store not in note.running for store in running)


def noted(
    before: Note | None,
    reason: str,
    version: int,
    running: Iterable[str],
    worker: str,
    now_us: int,
    until_us: int | None,
    backoff_us: int,
    backoff_max_us: int,
) -> Note:
    """The note about a ledger that is not whole. `until_us`: when to try again at the latest, if that is known."""
    again = before is not None and before.mark == version
    tries = before.tries + 1 if before is not None and again else 1
    pause_us = min(backoff_max_us, backoff_us << min(tries - 1, 20))
    retry_us = now_us + pause_us if until_us is None else min(until_us, now_us + backoff_max_us)
    since_us = before.since_us if before is not None else now_us
    return Note(reason, since_us, tries, retry_us, version, tuple(sorted(running)), worker)
