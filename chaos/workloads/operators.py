"""Requests of operators that several workloads share: ask roles directly, pick a tablet, hand over, flush."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import TypeVar

import msgspec

from ebla.actors import messages as m
from ebla.chaos.checkers.refusals import Explained
from ebla.chaos.checkers.verdict import Verdict, passed
from ebla.chaos.history import History, is_order
from ebla.chaos.workloads.base import Client, NoAnswer
from ebla.health.verdicts import Digests, Unanswered
from ebla.storage.schema import COLUMNS

Reply = TypeVar("Reply")
ANSWER_S = 5.0
MARKED_S = (0.5, 4.0)


def known_digests(result: Digests) -> dict[str, tuple[int, str]]:
    """The number of rows and the digest of each replica that answered, by uuid."""
    replies = result.replicas.items()
    return {uuid: (reply.rows, reply.digest) for uuid, reply in replies if not isinstance(reply, Unanswered)}


class Operators:
    """A refusal, or no answer, raises NoAnswer: an operator tries again later. A table that was listed may be gone by the time of
    the next request about it."""

    explained: Explained = MappingProxyType({"beside-info": ("NotFound", "TableDropped")})

    def judge(self, history: History) -> Verdict:
        """Valid if a request was carried out: the other workloads judge the effects."""
        judged = sum(each.known and is_order(each.name) for each in history.operations())
        return passed(judged, "no request of an operator was carried out")

    async def _hand_over(self, client: Client) -> None:
        """Let a tablet's leader step down, for a named successor or the best one."""
        tablet = await self._some_tablet(client)
        if tablet is None or tablet.leader is None:
            return
        others = [replica.uuid for replica in tablet.replicas if replica.address != tablet.leader]
        successor = client.random.choice([None, *others])
        request = m.StepDownRequest(tablet.tablet, successor, 2.0)
        await self._ask_role(client, tablet.leader, "step_down", request, m.StepDownReply)

    async def _flush(self, client: Client) -> None:
        """Flush a replica, or all of its server; merge its runs if its rows are columns."""
        info = await self._some_table(client)
        tablet = self._one_of(client, info)
        if info is None or tablet is None:
            return
        address = client.random.choice([replica.address for replica in tablet.replicas])
        everything = client.random.random() < 0.3
        request = m.FlushRequest(None if everything else tablet.tablet)
        await self._ask_role(client, address, "flush", request, m.FlushReply)
        if info.storage == COLUMNS:
            merge = m.CompactRequest(tablet.tablet)
            await self._ask_role(client, address, "compact", merge, m.CompactReply)

    async def _ask_master(
        self, client: Client, method: str, request: msgspec.Struct, reply: type[Reply]
    ) -> Reply:
        return await self._ask_role(client, client.db._client.master.address, method, request, reply)

    async def _mark(
        self,
        client: Client,
        address: str,
        verb: str,
        request: Callable[[str, bool], msgspec.Struct],
        reply: type[msgspec.Struct],
    ) -> None:
        """Mark a server, and remove the mark after a while; repeat until that is acknowledged."""
        try:
            await self._ask_master(client, verb, request(address, True), reply)
            await client.clock.sleep(client.random.uniform(*MARKED_S))
        finally:
            await self._until_answered(client, verb, request(address, False), reply)

    async def _until_answered(
        self, client: Client, method: str, request: msgspec.Struct, reply: type[msgspec.Struct]
    ) -> None:
        """Repeat a request to the master until it is answered."""
        while True:
            try:
                await self._ask_master(client, method, request, reply)
                return
            except NoAnswer:
                await client.clock.sleep(0.5)

    async def _ask_role(
        self, client: Client, address: str, method: str, request: msgspec.Struct, reply: type[Reply]
    ) -> Reply:
        return await client.order(
            method, address, client.network.call(address, method, request, reply, ANSWER_S)
        )

    async def _some_table(self, client: Client) -> m.TableInfo | None:
        tables = await client.beside("tables", None, client.db.tables(deadline_s=client.deadline_s()))
        if not tables:
            return None
        name = client.random.choice(tables).name
        return await client.beside("info", name, _info(client, name))

    async def _some_tablet(self, client: Client) -> m.TabletLocation | None:
        return self._one_of(client, await self._some_table(client))

    def _one_of(self, client: Client, info: m.TableInfo | None) -> m.TabletLocation | None:
        tablets = [tablet for tablet in info.tablets if tablet.replicas] if info else []
        return client.random.choice(tablets) if tablets else None


async def _info(client: Client, name: str) -> m.TableInfo:
    return await (await client.db.table(name, deadline_s=client.deadline_s())).info()
