"""Asks the masters, the nodes of their journal, every server and every ledger store directly for their state. tablets.py judges the answers.

A role without an answer is recorded as `Unanswered`; the others are asked all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from ebla.actors import messages as m
from ebla.actors.errors import (
    NetworkError,
    NotActive,
    NotFound,
    NotRunning,
)
from ebla.actors.journal.messages import JournalNodeStatus
from ebla.actors.ledger.messages import StoreStatus
from ebla.actors.master.messages import JournalWriterStatus
from ebla.actors.world import Network
from ebla.health.ledgers import Registered, registered
from ebla.health.verdicts import ACTIVE, Survey, Unanswered, answered
from ebla.storage.errors import EblaError

T = TypeVar("T")

CALLS_MAX = 32  # at the same time
MASTER_S = 5.0
SERVER_S = 3.0
DIGEST_S_MAX = 600.0  # of all tablets together
CHECKPOINT_S = 10.0  # for the leader to begin it, and again for a replica to apply it
DIGEST_ASK_S = 5.0  # one request; a replica that still reads is asked again


def unanswered(error: EblaError) -> Unanswered:
    return Unanswered(type(error).__name__, error.message)


async def ask(
    network: Network, address: str, method: str, message: msgspec.Struct, reply: type[T], timeout_s: float
) -> T | Unanswered:
    """The answer, or why there is none; reports name the address themselves."""
    try:
        return await network.call(address, method, message, reply, timeout_s)
    except EblaError as error:
        why = error.message.removeprefix(f"{method} at {address}: ").removeprefix(f"{address} ")
        return Unanswered(type(error).__name__, why)


async def survey(
    network: Network,
    masters: Sequence[str],
    slots: Iterable[str] = (),
    tables: Sequence[str] | None = None,
    timeout_s: float = SERVER_S,
    journals: Sequence[str] = (),
    stores: Sequence[str] = (),
) -> Survey:
    """Ask all roles once, for all tables or for some. `slots`: the addresses of servers that should exist, `journals` those of
    journal nodes, `stores` those of ledger stores; masters name further ones."""
    known = await ask_each(network, masters, "status", m.MasterStatus, MASTER_S)
    others = [each for each in _named(known, lambda status: status.masters) if each not in known]
    known |= await ask_each(network, others, "status", m.MasterStatus, MASTER_S)
    nodes = dict.fromkeys([*_named(known, lambda status: status.journals), *journals])
    leading = next((each for each, status in answered(known).items() if status.role == ACTIVE), None)
    servers: tuple[m.ServerStatus, ...] = ()
    infos: list[m.TableInfo] = []
    if leading is not None:
        try:
            listed, infos = await asyncio.gather(
                network.call(leading, "list_servers", m.Empty(), m.ListServersReply, MASTER_S),
                table_infos(network, leading, tables),
            )
            servers = listed.servers
        except (NetworkError, NotActive, NotRunning) as error:
            known[leading] = unanswered(error)
    addresses = dict.fromkeys([*slots, *(server.address for server in servers)])
    for info in infos:
        for tablet in info.tablets:
            addresses.update(dict.fromkeys(replica.address for replica in tablet.replicas))
    states, (kept, writer), (stored, repairs) = await asyncio.gather(
        ask_each(network, list(addresses), "status", m.ServerState, timeout_s),
        _ask_journal(network, list(nodes), leading, timeout_s),
        _ask_stores(network, stores, leading, timeout_s),
    )
    return Survey(
        known,
        servers,
        tuple(infos),
        states,
        tuple(slots),
        kept,
        writer,
        stored,
        repairs.leaving,
        repairs.ledgers,
        repairs.unknown,
        repairs.running,
        repairs.idle,
    )


async def ask_each(
    network: Network, addresses: Sequence[str], method: str, reply: type[T], timeout_s: float
) -> dict[str, T | Unanswered]:
    """The answers of roles to a question without arguments, by address."""
    asked = [ask(network, each, method, m.Empty(), reply, timeout_s) for each in addresses]
    return dict(zip(addresses, await gathered(asked), strict=True))


async def _ask_journal(
    network: Network, nodes: Sequence[str], leading: str | None, timeout_s: float
) -> tuple[dict[str, JournalNodeStatus | Unanswered], JournalWriterStatus | Unanswered | None]:
    """Ask the nodes, and the active master after them: it has committed all that a node calls committed."""
    kept = await ask_each(network, nodes, "journal_status", JournalNodeStatus, timeout_s)
    if leading is None or not nodes:
        return kept, None
    return kept, await ask(network, leading, "journal_writer", m.Empty(), JournalWriterStatus, MASTER_S)


async def _ask_stores(
    network: Network, stores: Sequence[str], leading: str | None, timeout_s: float
) -> tuple[dict[str, StoreStatus | Unanswered], Registered]:
    """Ask the stores that are named, and those that the coordination namespace knows."""
    found = Registered() if leading is None else await registered(network, leading, MASTER_S)
    every = sorted({*stores, *(store.address for store in found.known)})
    return await ask_each(network, every, "store_status", StoreStatus, timeout_s), found


def _named(
    masters: dict[str, m.MasterStatus | Unanswered], role: Callable[[m.MasterStatus], tuple[str, ...]]
) -> list[str]:
    """The addresses that any master names, also those that Ray no longer knows."""
    return sorted({each for status in answered(masters).values() for each in role(status)})


async def table_infos(network: Network, master: str, names: Sequence[str] | None = None) -> list[m.TableInfo]:
    """The master's description of the tables. A named table must exist; others that are dropped meanwhile are left out."""
    if names is None:
        listed = await network.call(master, "list_tables", m.ListTablesRequest(), m.ListTablesReply, MASTER_S)
        wanted = [summary.name for summary in listed.tables]
    else:
        wanted = list(names)

    async def one(name: str) -> m.TableInfo | None:
        try:
            return await network.call(master, "get_table", m.TableName(name), m.TableInfo, MASTER_S)
        except NotFound:
            if names is not None:
                raise
            return None

    return [info for info in await gathered([one(name) for name in wanted]) if info is not None]


async def gathered(calls: Sequence[Awaitable[T]], at_once: int = CALLS_MAX) -> list[T]:
    """The answers in order; at most `at_once` calls are under way at the same time."""
    room = asyncio.Semaphore(at_once)

    async def one(call: Awaitable[T]) -> T:
        async with room:
            return await call

    return await asyncio.gather(*(one(call) for call in calls))


def _now() -> float:
    return asyncio.get_running_loop().time()
