"""Taking a host out of service: its replicas of tablets and its ledgers move to other hosts, and it gets no new ones.

The decommission is part of the deployment's state. It goes on without the command that began it, and ends with its undo, or when
the host is forgotten. Reads and writes continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from ebla.actors.errors import NotFound, Unavailable
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.shared.repairs import Repairs
from ebla.actors.ledger.shared.survey import MarkedLedger, marked
from ebla.actors.ledger.shared.survey import survey as repair_survey
from ebla.actors.master.messages import DrainReply
from ebla.actors.replication.configuration import names
from ebla.operate import draining
from ebla.operate.naming import Refused, meant
from ebla.operate.waiting import Progress, until
from ebla.storage.errors import EblaError
from ebla.wording import count, host_of, short

if TYPE_CHECKING:
    from ebla.operate.cluster import Cluster

ASKED_MAX = 200  # marks that one look reads
NAMED_MAX = 8  # ledgers in one message
STUCK_POLLS_MAX = 10  # a second apart: a worker has seen the latest news by then
IDLE_POLLS_MAX = 90  # without anything that happens to a ledger

REMEDY = (
    "start what is missing (the decommission then continues), or run `ebla nodes decommission --off`; `ebla autorecovery status` "
    "shows the reasons. `ebla nodes forget STORE --accept-loss` gives up what only a lost store had"
)


class LedgersStay(Unavailable):
    """Ledgers cannot leave the host. `ledgers`: by number, why."""

    ledgers: dict[int, str] | None


class Stores(msgspec.Struct, frozen=True):
    """The ledger stores of a host: one, or several if it lost its directory. `left`: the ledgers that name
    them. `replaced`: only the one whose directory was lost; the store that has its address now stays."""

    addresses: tuple[str, ...]
    uuids: tuple[str, ...]
    leaving: bool
    left: tuple[int, ...]
    replaced: bool = False


class State(msgspec.Struct, frozen=True):
    """`tablets`: of the host's tablet server, None if there is none. `stores`: None if it has no ledger store."""

    tablets: DrainReply | None
    stores: Stores | None


async def decommission(cluster: Cluster, host: str, *, progress: Progress | None = None) -> State:
    """Begin, or see how far it is. `host`: as `host_meant` has it. Raises NotFound if there is no such host."""
    return await _set(cluster, host, True, progress or Progress())


async def wait(
    cluster: Cluster, host: str, begun: State, timeout_s: float = 3600.0, progress: Progress | None = None
) -> State:
    """Return when the host has neither replicas nor ledgers. Raises Unavailable (LedgersStay) if something cannot move, or if another
    command has ended the decommission; TimedOut."""
    parts = _Parts(progress or Progress())
    tablets, stores = await asyncio.gather(
        _without_replicas(cluster, host, begun.tablets, timeout_s, parts.part("tablets")),
        _without_ledgers(cluster, begun.stores, timeout_s, parts.part("ledgers")),
        return_exceptions=True,
    )
    if isinstance(tablets, EblaError) and isinstance(stores, EblaError):
        stays = stores.ledgers if isinstance(stores, LedgersStay) else None
        raise LedgersStay(f"{tablets}; and {stores}", ledgers=stays)
    if isinstance(tablets, BaseException):
        raise tablets
    if isinstance(stores, BaseException):
        raise stores
    return State(tablets, stores)


async def undo(cluster: Cluster, host: str, progress: Progress | None = None) -> State:
    """End it: the host may have replicas and ledgers again. What has moved stays where it is."""
    return await _set(cluster, host, False, progress or Progress())


async def _set(cluster: Cluster, host: str, on: bool, progress: Progress) -> State:
    addresses = await _addresses_at(cluster, host)
    try:
        tablets = await draining.ask(cluster, host, on, progress)
    except NotFound:
        if not addresses:
            raise
        tablets = None
    if addresses:
        await cluster.ledgers.registry.leave(addresses, on)
    # Until then, ledgers may have been made there.
    return State(tablets, await stores_at(cluster, host))


async def host_meant(cluster: Cluster, word: str, progress: Progress) -> str:
    """The host that `word` names: by its name, or by address or uuid of its tablet server or of a ledger store there. A word that
    names none is returned without the role. Raises Refused if it names several."""
    known = await cluster.ledgers.registry.known()
    addresses = [each.address for each in known if names(word, each.uuid, each.address)]
    try:
        addresses += [each.address for each in (await draining.ask(cluster, word, None, progress)).servers]
    except NotFound:
        pass  # no tablet server, or none that the master has heard of
    hosts = list(dict.fromkeys(map(host_of, addresses)))
    if word in hosts:
        return word
    if len(hosts) > 1:
        raise Refused(f"{word!r} may mean {' or '.join(hosts)}", hint="name one host by its whole name")
    return hosts[0] if hosts else host_of(word)


async def stores_at(cluster: Cluster, host: str) -> Stores | None:
    """The stores that ever registered from this host, and their ledgers."""
    registry = cluster.ledgers.registry
    addresses = await _addresses_at(cluster, host)
    if not addresses:
        return None
    uuids = tuple(each.uuid for each in await registry.known() if each.address in addresses)
    left = await _naming(cluster, uuids)
    leaving = await registry.leaving()
    return Stores(addresses, uuids, any(each in leaving for each in uuids), left)


async def replaced(cluster: Cluster, word: str) -> Stores | None:
    """The store that `word` names by its uuid, if it lost its directory: another store runs at its address, and it does not."""
    running = await cluster.ledgers.registry.stores()
    up, taken = [each.uuid for each in running], [each.address for each in running]
    known = [each for each in await cluster.ledgers.registry.known() if each.uuid not in up]
    uuid = meant(word, [(each.uuid, each.uuid) for each in known if each.address in taken])
    if uuid is None:
        return None
    addresses = tuple(each.address for each in known if each.uuid == uuid)
    return Stores(addresses, (uuid,), False, await _naming(cluster, [uuid]), True)


async def _addresses_at(cluster: Cluster, host: str) -> tuple[str, ...]:
    known = await cluster.ledgers.registry.known()
    return tuple(dict.fromkeys(each.address for each in known if host_of(each.address) == host))


async def renewed(cluster: Cluster, stores: Stores) -> Stores:
    """The stores with the ledgers that name them now."""
    return msgspec.structs.replace(stores, left=await _naming(cluster, stores.uuids))


async def _naming(cluster: Cluster, uuids: Sequence[str], of: Sequence[int] | None = None) -> tuple[int, ...]:
    """The ledgers that name one of the stores; with `of`, those among them."""
    found = await cluster.ledgers.every(of)
    return tuple(each.ledger for each in found if any(store in uuids for store in meta.stores_in(each)))


class _Parts:
    """Progress of tablets and of ledgers, shown as one."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._texts: dict[str, tuple[str, float, float | None]] = {}

    def part(self, name: str) -> Progress:
        def show(text: str, done: float, total: float | None) -> None:
            self._texts[name] = text, done, total
            known = self._texts.values()
            totals = [each[2] for each in known if each[2] is not None]
            self._progress.step(
                "; ".join(each[0] for each in known),
                sum(each[1] for each in known),
                sum(totals) if totals else None,
            )

        return Progress(show)


async def _without_replicas(
    cluster: Cluster, host: str, first: DrainReply | None, timeout_s: float, progress: Progress
) -> DrainReply | None:
    return None if first is None else await draining.emptied(cluster, host, first, timeout_s, progress)


async def _without_ledgers(
    cluster: Cluster, first: Stores | None, timeout_s: float, progress: Progress
) -> Stores | None:
    return None if first is None else await without_ledgers(cluster, first, timeout_s, progress)


# -- ledgers -------------------------------------------------------------------------------------------------


async def without_ledgers(cluster: Cluster, first: Stores, timeout_s: float, progress: Progress) -> Stores:
    """Wait until no ledger names the stores. None names a store again that leaves (see actors/ledger/shared/kept.py), so only those of
    the first look can. But a first look may be older than the decommission, and another command may have ended that for a
    while: all ledgers are looked at again before this returns. Raises as `wait`."""
    left, total = first.left, len(first.left)
    waits = _Waits()

    async def poll() -> str | None:
        nonlocal left, total
        if not (first.replaced or await _is_leaving(cluster, first)):
            raise Unavailable(
                f"{host_names(first)} is no longer being decommissioned: another command ended that"
            )
        left = await _naming(cluster, first.uuids, left) or await _naming(cluster, first.uuids)
        if not left:
            return None
        total = max(total, len(left))
        text = await waits.look(cluster, first, left)
        text = f"{count(len(left), 'ledger')} of {total} left{text}"
        progress.step(text, total - len(left), total)
        return text

    await until(poll, timeout_s, progress, "nodes decommission")
    return msgspec.structs.replace(first, left=())


async def _is_leaving(cluster: Cluster, stores: Stores) -> bool:
    leaving = await cluster.ledgers.registry.leaving()
    return all(uuid in leaving for uuid in stores.uuids)


class _Waits:
    """The reasons for which ledgers wait, from round to round. Ends a wait for something that does not come by itself."""

    def __init__(self) -> None:
        self._stuck = self._idle = 0
        self._seen: object = None

    async def look(self, cluster: Cluster, stores: Stores, left: Sequence[int]) -> str:
        """The reasons to wait now. Raises LedgersStay."""
        ledgers = cluster.ledgers
        repairs = Repairs(ledgers.session)
        if not await repairs.enabled():
            raise stay(
                stores,
                dict.fromkeys(left, "repairs of ledgers are disabled"),
                "`ebla autorecovery enable` starts them, and the decommission continues",
            )
        asked = left[:ASKED_MAX]
        found = {each.ledger: each for each in await marked(ledgers.world, ledgers.registry, repairs, asked)}
        stuck = {ledger: str(each.reason) for ledger, each in found.items() if each.stuck}
        self._stuck = self._stuck + 1 if len(stuck) == len(asked) else 0
        if self._stuck > STUCK_POLLS_MAX:
            raise stay(stores, stuck, REMEDY)
        news = (len(left), tuple(found.values()))
        self._idle = 0 if news != self._seen or len(stuck) == len(asked) else self._idle + 1
        self._seen = news
        if self._idle > IDLE_POLLS_MAX:
            raise await self._nobody(cluster, stores, asked, found)
        reasons = list(
            dict.fromkeys(each.reason for each in found.values() if each.reason and each.worker is None)
        )
        return f"; waiting: {reasons[0]}" if reasons else ""

    async def _nobody(
        self, cluster: Cluster, stores: Stores, asked: Sequence[int], found: dict[int, MarkedLedger]
    ) -> LedgersStay:
        seen = await repair_survey(cluster.ledgers.world, cluster.ledgers.session, 0)
        lack = "no auditor runs" if seen.auditor is None else "no replication worker takes it"
        reasons = {}
        for ledger in asked:
            mark = found.get(ledger)
            reasons[ledger] = mark.reason if mark is not None and mark.reason else lack
        return stay(stores, reasons, "`ebla status` shows the roles that do not run, `ebla up` starts them")


def stay(stores: Stores, reasons: dict[int, str], remedy: str, verb: str = "cannot move") -> LedgersStay:
    """The error that names ledgers, each reason once."""
    by_reason: dict[str, list[int]] = {}
    for ledger, reason in reasons.items():
        by_reason.setdefault(reason, []).append(ledger)
    texts = []
    for reason, ledgers in by_reason.items():
        more = f" and {len(ledgers) - NAMED_MAX} more" if len(ledgers) > NAMED_MAX else ""
        word = "ledger" if len(ledgers) == 1 else "ledgers"
        texts.append(f"{word} {', '.join(map(str, ledgers[:NAMED_MAX]))}{more}: {reason}")
    word = "ledger" if len(reasons) == 1 else "ledgers"
    more = "; ".join(texts)
    host = host_names(stores)
    what = (
        f"{word} on {host} cannot move"
        if verb != "need"
        else f"{word} still need{'s' if len(reasons) == 1 else ''} {host}"
    )
    return LedgersStay(f"{len(reasons)} {what} ({more}); {remedy}", ledgers=reasons)


def host_names(stores: Stores) -> str:
    if stores.replaced:
        return f"store {short(stores.uuids[0])}"
    return ", ".join(map(host_of, stores.addresses))


async def reasons(cluster: Cluster, ledgers: Sequence[int]) -> dict[int, str | None]:
    """Why these ledgers are not whole, as far as they are marked."""
    known = cluster.ledgers
    repairs = Repairs(known.session)
    found = await marked(known.world, known.registry, repairs, ledgers[:ASKED_MAX])
    return {each.ledger: each.reason for each in found}
