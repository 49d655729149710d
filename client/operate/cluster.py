"""A deployment as an operator's program sees it: one connection, and the questions that all operations ask."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ebla.actors import messages as m
from ebla.actors.ray_shell import Pong
from ebla.actors.replication.configuration import PREFIX_MIN
from ebla.errors import NotFound
from ebla.health import survey
from ebla.health.tablets import judge
from ebla.health.verdicts import ClusterHealth, Survey, TabletHealth, Unanswered
from ebla.operate.naming import Refused
from ebla.operate.waiting import Deadline, Progress
from ebla.storage.errors import EblaError, InvalidArgument
from ebla.transport.client import DeploymentClient
from ebla.wording import brief

if TYPE_CHECKING:
    from ebla.aio import Database
    from ebla.log.reading import Ledgers

T = TypeVar("T")

CALL_S = 12.0  # a master gives a tablet's leader 10 s
AGAIN_S = 0.3
PING_S = 2.0
REASON_MAX = 60  # characters of a refusal that may pass; the last refusal is raised in full


class Cluster:
    """`slots`, `journals`, `stores` and `repairers`: the addresses of tablet servers, journal nodes, ledger stores, and replication
    workers and auditors that Ray knows."""

    def __init__(
        self,
        client: DeploymentClient,
        slots: Sequence[str],
        journals: Sequence[str] = (),
        stores: Sequence[str] = (),
        repairers: Sequence[str] = (),
    ) -> None:
        self.client = client
        self.network = client.world.network
        self.masters = client.master.addresses
        self.slots = tuple(slots)
        self.journals = tuple(journals)
        self.stores = tuple(stores)
        self.repairers = tuple(repairers)

    @cached_property
    def database(self) -> Database:
        """The API of tables. Status commands need none of its modules, and start without them."""
        from ebla.aio import Database

        return Database(self.client)

    @property
    def ledgers(self) -> Ledgers:
        """The ledgers as the API of logs has them."""
        return self.database._logs

    async def leave(self) -> None:
        """End the session that changes of logs have opened, before the connection is closed."""
        if "database" in self.__dict__ and self.database._ledgers is not None:
            await self.database._ledgers.session.close()

    # -- requests

    async def call(
        self, address: str, method: str, message: msgspec.Struct, reply: type[T], timeout_s: float
    ) -> T:
        try:
            return await self.network.call(address, method, message, reply, timeout_s)
        except UnicodeEncodeError as error:  # a word of the operator
            raise InvalidArgument(f"{error.object!r} is not valid Unicode") from error

    async def ask(
        self, address: str, method: str, message: msgspec.Struct, reply: type[T], timeout_s: float
    ) -> T | Unanswered:
        """As `call`, but a failure is a value."""
        return await survey.ask(self.network, address, method, message, reply, timeout_s)

    async def active(self) -> str:
        """The active master, found by a request to it."""
        await self.database.servers()
        return self.client.master.address

    async def persist(
        self,
        method: str,
        request: msgspec.Struct,
        reply: type[T],
        timeout_s: float,
        progress: Progress | None = None,
    ) -> T:
        """The answer of the active master. A refusal that may pass is followed by the same request again, for `timeout_s`;
        then the last refusal is raised. Only for requests that may be repeated."""
        deadline = Deadline(timeout_s)
        while True:
            try:
                return await self.call(await self.active(), method, request, reply, CALL_S)
            except EblaError as error:
                passes = error.retriable or error.possibly_applied
                if not passes or deadline.passed:
                    raise
                if progress is not None:
                    why = brief(error.message, REASON_MAX)
                    progress.step(f"not yet, asking for {timeout_s:g} s in all: {why}")
            await asyncio.sleep(AGAIN_S)

    # -- what is there

    async def survey(self, tables: Sequence[str] | None = None) -> Survey:
        return await survey.survey(
            self.network, self.masters, self.slots, tables, journals=self.journals, stores=self.stores
        )

    async def health(self, tables: Sequence[str] | None = None) -> ClusterHealth:
        return judge(await self.survey(tables))

    async def servers(self) -> list[str]:
        """Every address at which a tablet server is, or from which the master has received a heartbeat."""
        known = [status.address for status in await self.database.servers()]
        return sorted(dict.fromkeys([*self.slots, *known]))

    async def hosts(self, addresses: Sequence[str]) -> dict[str, str | None]:
        """The slot of each role, as the role itself reports it; None if it does not answer."""
        pongs = await survey.ask_each(self.network, addresses, "ping", Pong, PING_S)
        return {each: None if isinstance(pong, Unanswered) else pong.slot for each, pong in pongs.items()}

    # -- tables and tablets by name

    async def table_info(self, name: str) -> m.TableInfo:
        return await (await self.database.table(name)).info()

    async def tablet(self, given: str) -> tuple[m.TableInfo, m.TabletLocation]:
        """The tablet with this id, or the only one whose id begins with it."""
        infos = await survey.table_infos(self.network, await self.active())
        found = [(info, each) for info in infos for each in info.tablets if each.tablet.startswith(given)]
        exact = [(info, each) for info, each in found if each.tablet == given]
        if exact:
            return exact[0]
        if not found:
            raise NotFound(f"there is no tablet {given!r}; see `ebla tablet list`", what="tablet")
        if len(found) > 1 or len(given) < PREFIX_MIN:
            raise too_short(given, f"{len(found)} tablet ids begin so")
        return found[0]

    async def tablet_health(self, given: str) -> tuple[Survey, TabletHealth]:
        """The verdict on one tablet, named as for `tablet`, and the survey that the verdict is from."""
        info, location = await self.tablet(given)
        seen = await self.survey([info.name])
        return seen, next(each for each in judge(seen).tablets if each.tablet == location.tablet)


def too_short(given: str, why: str) -> Refused:
    return Refused(f"{given!r} is too short: {why}", hint="give more characters of it")
