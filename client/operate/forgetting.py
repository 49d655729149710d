"""Forgetting the ledger stores of a host that is gone for good.

A store is forgotten when no ledger names it. Before that, workers replace it. What only lost stores had is given up first, if an
operator accepts the loss:

    entries   without a readable copy are noted in the ledger as given up: no store owes them, and reads of them raise EntryLost
    ends      that cannot be decided without the lost stores are decided without them: the ledger ends at the last entry that is found,
              and entries before it of which the other stores have damaged copies only are given up

Nothing that a running store has is given up. Every step may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from ebla.actors import messages as m
from ebla.actors.errors import NotFound, Unavailable
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import EntryLost, RecoveryFailed
from ebla.actors.ledger.handles.checking import Checker, all_fragments
from ebla.actors.ledger.handles.recovery import recover
from ebla.actors.ledger.messages import StoreStatus
from ebla.actors.ledger.metadata import Metadata
from ebla.health.verdicts import Unanswered
from ebla.operate import decommissioning
from ebla.operate.decommissioning import Stores
from ebla.operate.waiting import Progress, until
from ebla.wording import host_of

if TYPE_CHECKING:
    from ebla.operate.cluster import Cluster

ASK_S = 3.0


class Loss(msgspec.Struct, frozen=True):
    """The part of a ledger that is given up: `entries` as ranges, and with `end` everything that was acknowledged after the last entry that is
    found. `perhaps`: other stores that do not run, and may have some of it."""

    ledger: int
    log: str
    entries: tuple[tuple[int, int], ...]
    end: bool
    perhaps: tuple[str, ...]


async def require_silence(cluster: Cluster, stores: Stores, timeout_s: float, progress: Progress) -> None:
    """Raise Unavailable if one of the stores answers, or is still registered after `timeout_s`. Of a store that was replaced, another
    one answers."""
    for address in stores.addresses:
        answer = await cluster.ask(address, "store_status", m.Empty(), StoreStatus, ASK_S)
        if isinstance(answer, Unanswered) or (stores.replaced and answer.uuid not in stores.uuids):
            continue
        others = [uuid for uuid in stores.uuids if uuid != answer.uuid]
        lost = (
            f"; `ebla nodes forget {others[0]}` forgets only the store that lost its directory"
            if others
            else ""
        )
        raise Unavailable(
            f"the ledger store at {address} answers; to remove it for good, first run `ebla nodes decommission "
            f"{host_of(address)} --wait --stop`{lost}"
        )

    async def registered() -> str | None:
        running = await cluster.ledgers.registry.running()
        return "its store counts as running" if any(each in running for each in stores.uuids) else None

    await until(registered, timeout_s, progress, "nodes forget")


async def require_unneeded(cluster: Cluster, stores: Stores) -> None:
    """Raise LedgersStay if a ledger names one of the stores."""
    if stores.left:
        host = stores.uuids[0] if stores.replaced else decommissioning.host_names(stores)
        reasons = await decommissioning.reasons(cluster, stores.left)
        raise decommissioning.stay(
            stores,
            {ledger: reasons.get(ledger) or "it is to be moved" for ledger in stores.left},
            f"`ebla nodes decommission {host} --wait` moves what has copies elsewhere, also while the host is away; "
            f"`ebla nodes forget {host} --accept-loss` gives up the rest",
            "need",
        )


async def losses(cluster: Cluster, stores: Stores, progress: Progress) -> list[Loss]:
    """The losses that giving up these stores would mean. Raises Unavailable if a store that runs does not answer: it may have the entries."""
    found = []
    for at, ledger in enumerate(stores.left):
        progress.step(f"ledger {ledger}: looking for copies", at, len(stores.left))
        try:
            loss = await _loss(cluster, await cluster.ledgers.registry.read(ledger), stores.uuids)
        except NotFound:
            continue
        if loss is not None:
            found.append(loss)
    return found


async def _loss(cluster: Cluster, found: Metadata, gone: Sequence[str]) -> Loss | None:
    ledgers = cluster.ledgers
    running = await ledgers.registry.running()
    newest = found.segments[-1].stores
    there = [position for position, store in enumerate(newest) if store in running]
    end = not found.closed and not meta.covers(found, there)
    if not end and found.state == meta.IN_RECOVERY and any(store in gone for store in newest):
        try:
            found = await recover(
                ledgers.world, ledgers.registry, ledgers.stores, found.ledger, ledgers.options
            )
        except (EntryLost, RecoveryFailed):
            end = True
    missing = {store for store in newest if end and store not in running}
    entries: list[tuple[int, int]] = []
    checker = Checker(ledgers.world, ledgers.registry, ledgers.stores, ledgers.options)
    for fragment in all_fragments(found, found.segments[-1].first - 1):
        if fragment.last < fragment.first or not any(store in gone for store in fragment.stores):
            continue
        lost = await checker.unreadable(found, fragment, running)
        if lost.silent:
            raise Unavailable(
                f"store {', '.join(lost.silent)} runs and does not answer, and may have entries of ledger {found.ledger}; try again"
            )
        entries += lost.entries
        missing.update(lost.missing)
    if not entries and not end:
        return None
    perhaps = tuple(sorted(store for store in missing if store not in gone))
    return Loss(found.ledger, found.log, tuple(entries), end, perhaps)


async def give_up(cluster: Cluster, stores: Stores, accepted: Sequence[Loss], progress: Progress) -> None:
    """Give up what was accepted, durably, and let workers move the rest of the ledgers."""
    ledgers = cluster.ledgers
    await _leave(cluster, stores)
    for loss in accepted:
        progress.step(f"ledger {loss.ledger}: giving up what is lost")
        try:
            if loss.end:
                await _end(cluster, loss.ledger, (*stores.uuids, *loss.perhaps))
            now = await _loss(cluster, await ledgers.registry.read(loss.ledger), stores.uuids)
            if now is not None and now.entries:
                await _note(cluster, loss.ledger, now.entries)
            for uuid in stores.uuids:  # a worker tries it again at once
                await ledgers.registry.mark(loss.ledger, uuid)
        except NotFound:
            continue


async def _end(cluster: Cluster, ledger: int, gone: Sequence[str]) -> None:
    """Decide the end without these stores."""
    ledgers = cluster.ledgers
    while True:
        try:
            await recover(ledgers.world, ledgers.registry, ledgers.stores, ledger, ledgers.options, gone)
            return
        except EntryLost as lost:
            if lost.entry is None:
                raise
            await _note(cluster, ledger, [(lost.entry, lost.entry)])


async def _note(cluster: Cluster, ledger: int, entries: Sequence[tuple[int, int]]) -> None:
    await cluster.ledgers.registry.change(ledger, lambda found: meta.with_given_up(found, entries))


async def forget(cluster: Cluster, stores: Stores) -> None:
    """Remove the stores from the deployment. Raises LedgersStay if a ledger names one: then they leave, as in a decommission. Without
    that, a ledger could name one yet after the look at all ledgers."""
    registry = cluster.ledgers.registry
    await _leave(cluster, stores)
    await require_unneeded(cluster, await decommissioning.renewed(cluster, stores))
    await asyncio.gather(*(registry.forget(uuid) for uuid in stores.uuids))
    if not stores.replaced:
        await registry.leave(stores.addresses, False)


async def _leave(cluster: Cluster, stores: Stores) -> None:
    """The store that has the address of a replaced one does not leave. None names the replaced one: that takes a store that runs."""
    if not stores.replaced:
        await cluster.ledgers.registry.leave(stores.addresses, True)
