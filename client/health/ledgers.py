"""Asks which ledgers are marked for repair, and judges them. A deployment without logs has none.

    UNDER_REPLICATED   a store lacks entries that it should have, or is lost; a worker repairs that by itself
    UNRECOVERABLE      entries have no readable copy, or the ledger's end cannot be decided; only a store that returns with its data ends that

A ledger that leaves a host which is being decommissioned has all of its copies meanwhile: it is not listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from ebla.actors.coordination.messages import NodeReply, NodeRequest
from ebla.actors.ledger.handles.registry import StoreInfo
from ebla.actors.ledger.messages import WorkerStatus
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.kept import Leaving, Mark
from ebla.actors.ledger.shared.repairs import Note
from ebla.actors.ledger.shared.survey import MOVING, UNRECOVERABLE, completed, joined
from ebla.actors.messages import Empty
from ebla.actors.world import Network
from ebla.health import verdicts as v
from ebla.storage.errors import EblaError
from ebla.wording import count, host_of

R = TypeVar("R")

ASKED_MAX = 1000  # marks
CALLS_MAX = 32  # at the same time
NAMED_MAX = 5  # ledgers in one reason
DISABLED = "repairs are disabled; `ebla autorecovery enable` starts them again"
NO_AUDITOR = "no auditor runs; `ebla up` starts them"
NO_WORKER = "no replication worker answers; `ebla up` starts them"
WORKER_S = 2.0


class Registered(msgspec.Struct, frozen=True):
    """The stores that ever registered, the uuids of those that are registered as running (None: not known), the addresses of those
    whose hosts are being decommissioned, and the marked ledgers. `idle`: why nothing is repaired, if so. `unknown`: why something of
    it could not be read."""

    known: tuple[StoreInfo, ...] = ()
    running: tuple[str, ...] | None = None
    leaving: tuple[str, ...] = ()
    ledgers: tuple[v.LedgerHealth, ...] = ()
    idle: str | None = None
    unknown: str | None = None


class _Asker:
    unknown: str | None = None

    def __init__(self, network: Network, master: str, timeout_s: float) -> None:
        self._network = network
        self._master = master
        self._timeout_s = timeout_s
        self._room = asyncio.Semaphore(CALLS_MAX)

    async def exists(self, path: str) -> bool:
        return (await self._read(path, False)).node is not None

    async def children(self, path: str) -> tuple[str, ...]:
        return (await self._read(path, True)).children

    async def get(self, path: str, kind: type[R]) -> R | None:
        found = await self._read(path, False)
        if found.node is None:
            return None
        try:
            return msgspec.msgpack.decode(found.data, type=kind)
        except msgspec.MsgspecError as error:  # the other nodes still count
            self.unknown = self.unknown or f"the node {path} cannot be decoded: {error}"
            return None

    async def works(self, address: str) -> bool:
        """Whether a replication worker answers there."""
        async with self._room:
            try:
                await self._network.call(address, "worker_status", Empty(), WorkerStatus, WORKER_S)
            except EblaError:
                return False
            return True

    async def _read(self, path: str, children: bool) -> NodeReply:
        request = NodeRequest(path, children)
        async with self._room:
            return await self._network.call(self._master, "read_node", request, NodeReply, self._timeout_s)


async def registered(network: Network, master: str, timeout_s: float) -> Registered:
    """What the master answers, and why anything is missing."""
    asker = _Asker(network, master, timeout_s)
    found = Registered()
    try:
        uuids = await asker.children(paths.KNOWN)
        if not uuids:
            return found
        infos = await asyncio.gather(*(asker.get(f"{paths.KNOWN}/{uuid}", StoreInfo) for uuid in uuids))
        leaving = await asker.get(paths.LEAVING, Leaving)
        found = Registered(
            tuple(each for each in infos if each is not None),
            await asker.children(paths.UP),
            () if leaving is None else tuple(leaving.since_us),
            idle=await _why_idle(asker, [each.address for each in infos if each is not None]),
        )
        ledgers = await _marked(asker, found)
    except EblaError as error:
        return msgspec.structs.replace(found, unknown=error.message)
    return msgspec.structs.replace(found, ledgers=ledgers, unknown=asker.unknown)


async def _why_idle(asker: _Asker, stores: Sequence[str]) -> str | None:
    """A worker runs beside each store; any of them repairs any ledger."""
    if await asker.exists(paths.DISABLE):
        return DISABLED
    if not await asker.children(paths.AUDITOR):
        return NO_AUDITOR
    workers = [f"replication-worker/{host}" for host in dict.fromkeys(map(host_of, stores))]
    return None if any(await asyncio.gather(*map(asker.works, workers))) else NO_WORKER


async def _marked(asker: _Asker, stores: Registered) -> tuple[v.LedgerHealth, ...]:
    marks = sorted(int(name) for name in await asker.children(paths.MARKS) if name.isdecimal())
    if not marks:
        return ()
    noted = dict.fromkeys(await asker.children(paths.NOTES))  # only they can be unrecoverable
    marks.sort(key=lambda ledger: str(ledger) not in noted)
    if len(marks) > ASKED_MAX:
        asker.unknown = f"{count(len(marks) - ASKED_MAX, 'more ledger')} marked for repair; see `ebla autorecovery status`"
    known, leaving, running = stores.known, stores.leaving, stores.running or ()
    addresses = {store.uuid: store.address for store in known}
    moving = [store.uuid for store in known if store.address in leaving and store.uuid in running]

    async def one(ledger: int) -> v.LedgerHealth | None:
        mark = await asker.get(paths.of_mark(ledger), Mark)
        if mark is None:
            return None
        note = await asker.get(paths.of_note(ledger), Note)
        hosts = {uuid: host_of(address) for uuid, address in addresses.items()}
        found = completed(joined(ledger, mark, note, None), hosts, moving, None)
        if found.state == MOVING:
            return None
        return v.LedgerHealth(
            ledger,
            v.UNRECOVERABLE if found.state == UNRECOVERABLE else v.UNDER_REPLICATED,
            tuple(addresses.get(store, store) for store in found.stores),
            found.reason,
            found.entries,
            tuple(addresses.get(store, store) for store in found.missing),
        )

    made = await asyncio.gather(*(one(ledger) for ledger in marks[:ASKED_MAX]))
    return tuple(each for each in made if each is not None)


def reasons_of_ledgers(
    ledgers: Sequence[v.LedgerHealth], unknown: str | None = None, idle: str | None = None
) -> list[str]:
    """One for each unrecoverable ledger, the first ones; and one for all others. `unknown`: why there may be more; `idle`: why
    nothing is repaired."""
    lost = [each for each in ledgers if each.status == v.UNRECOVERABLE]
    reasons = [f"ledgers not known: {unknown}"] if unknown else []
    reasons += [f"ledgers are not repaired: {idle}"] if idle else []
    reasons += [f"ledger {each.ledger} is {each.status}: {each.reason}" for each in lost[:NAMED_MAX]]
    if len(lost) > NAMED_MAX:
        reasons.append(
            f"{count(len(lost) - NAMED_MAX, 'more ledger')} UNRECOVERABLE; see `ebla autorecovery status`"
        )
    if rest := [each for each in ledgers if each.status != v.UNRECOVERABLE]:
        numbers = ", ".join(str(each.ledger) for each in rest[:NAMED_MAX])
        more = ", ..." if len(rest) > NAMED_MAX else ""
        healing = "" if idle else "; workers repair that"
        why = next((f": {each.reason}" for each in rest if each.reason), healing)
        word = "is" if len(rest) == 1 else "are"
        reasons.append(f"{count(len(rest), 'ledger')} ({numbers}{more}) {word} UNDER_REPLICATED{why}")
    return reasons
