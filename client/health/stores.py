"""Asks and judges ledger stores. A deployment without logs has none, and nothing is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from ebla.actors.coordination.messages import NodeReply, NodeRequest
from ebla.actors.ledger.handles.registry import StoreInfo
from ebla.actors.ledger.shared import paths
from ebla.health import verdicts as v
from ebla.storage.errors import EblaError
from ebla.wording import size

if TYPE_CHECKING:
    from ebla.actors.ledger.messages import StoreStatus
    from ebla.actors.world import Network

_decode = msgspec.msgpack.Decoder(StoreInfo).decode


async def registered(network: Network, master: str, timeout_s: float) -> list[str]:
    """The addresses of all stores that ever registered; nothing if the master does not answer."""

    async def read(path: str, children: bool = False) -> NodeReply:
        return await network.call(master, "read_node", NodeRequest(path, children), NodeReply, timeout_s)

    try:
        uuids = (await read(paths.KNOWN, True)).children
        found = await asyncio.gather(*(read(f"{paths.KNOWN}/{uuid}") for uuid in uuids))
        return sorted({_decode(each.data).address for each in found if each.node is not None})
    except (EblaError, msgspec.MsgspecError):
        return []


def judge_stores(survey: v.Survey) -> tuple[v.StoreHealth, ...]:
    return tuple(_store(address, answer) for address, answer in sorted(survey.stores.items()))


def _store(address: str, answer: StoreStatus | v.Unanswered) -> v.StoreHealth:
    if isinstance(answer, v.Unanswered):
        return v.StoreHealth(address, v.UNREACHABLE, answer.message)
    status, error = v.HEALTHY, None
    if answer.read_only:
        status = v.READ_ONLY
        error = f"it takes no records, for {size(answer.free_bytes)} are free; free space there, and it takes them again by itself"
    return v.StoreHealth(
        address,
        status,
        error,
        answer.uuid,
        answer.ledgers,
        answer.bytes,
        answer.free_bytes,
        answer.read_only,
    )


def reasons_of_stores(stores: Iterable[v.StoreHealth]) -> list[str]:
    return [
        f"{store.address} is {store.status}: {store.error}" for store in stores if store.status != v.HEALTHY
    ]
