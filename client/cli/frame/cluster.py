"""A command's way into the deployment: one quiet connection for as long as the command runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ebla.cli.frame.problems import Refused
from ebla.cli.frame.render import brief
from ebla.cli.frame.ui import Ui
from ebla.errors import EblaError, NotFound, TableDropped, Unavailable
from ebla.storage.errors import did_you_mean

if TYPE_CHECKING:
    from ebla.actors import messages as m
    from ebla.aio import Database
    from ebla.health.verdicts import Survey
    from ebla.transport.client import DeploymentClient

T = TypeVar("T")

TABLET_PREFIX_MIN = 4
TABLET_SERVER, JOURNAL_NODE = "tablet-server/", "journal/"
PROBE_S = 3.0
QUIET_S = 3.0  # a take-over takes as long


class NoCluster(Unavailable):
    """There is no Ray cluster to connect to."""


class Cluster:
    """What the commands ask of a deployment."""

    def __init__(self, client: DeploymentClient, slots: Sequence[str], journals: Sequence[str] = ()) -> None:
        from ebla.aio import Database

        self.client = client
        self.database: Database = Database(client)
        self.network = client.world.network
        self.masters = client.masters
        self.slots = tuple(slots)
        self.journals = tuple(journals)

    async def survey(self, tables: Sequence[str] | None = None) -> Survey:
        from ebla.health import survey

        return await survey.survey(self.network, self.masters, self.slots, tables, journals=self.journals)

    async def active(self) -> str:
        """The master that serves now, found by asking."""
        await self.database.tables()
        return self.client.master

    async def call(
        self, address: str, method: str, message: msgspec.Struct, reply: type[T], timeout_s: float
    ) -> T:
        return await self.network.call(address, method, message, reply, timeout_s)

    async def table_info(self, name: str) -> m.TableInfo:
        """Raises NotFound with the name that may have been meant."""
        try:
            return await (await self.database.table(name)).info()
        except NotFound as error:
            raise await self.unknown_table(name) from error

    async def unknown_table(self, name: str) -> NotFound:
        """What to tell of a name that no table has: which one may have been meant, or that it can be recalled."""
        kept = [each for each in await self.database.tables(name, deleted=True) if each.name == name]
        if kept:
            return TableDropped.of(kept[-1].table, name, kept[-1].until_us)
        return unknown_table(name, [table.name for table in await self.database.tables()])

    async def tablet(self, given: str) -> tuple[m.TableInfo, m.TabletLocation]:
        """The tablet with this id, or with an id that begins so and no other does."""
        from ebla.health import survey

        infos = await survey.table_infos(self.network, await self.active())
        found = [(info, each) for info in infos for each in info.tablets if each.tablet.startswith(given)]
        exact = [(info, each) for info, each in found if each.tablet == given]
        if exact:
            return exact[0]
        if not found:
            raise NotFound(f"there is no tablet {given!r}; see `ebla tablet list`", what="tablet")
        if len(found) > 1 or len(given) < TABLET_PREFIX_MIN:
            raise Refused(
                f"{given!r} is too short: {len(found)} tablet ids begin so",
                hint="give more characters of it",
            )
        return found[0]


def unknown_table(name: str, names: Sequence[str]) -> NotFound:
    hint = did_you_mean(name, names)
    if not hint:
        hint = "; see `ebla table list`" if names else "; there are no tables yet: `ebla table create`"
    return NotFound(f"there is no table {name!r}{hint}", what="table")


def within(ui: Ui, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    """Connect, do the work, close."""
    patience = Patience(ui)

    async def told(cluster: Cluster) -> T:
        cluster.client.on_refusal = patience.refused
        return await work(cluster)

    return connected(ui, told)


class Patience:
    """Says once what a command waits for that is not answered at once."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._said = False

    def refused(self, error: EblaError, passed_s: float, deadline_s: float) -> None:
        if passed_s < QUIET_S or self._said:
            return
        from ebla.actors.errors import NotActive

        self._said = True
        why = "no master is active" if isinstance(error, NotActive) else brief(error.message)
        self._ui.note(f"no answer yet ({why}); trying for {deadline_s:.0f} s in all")


def connected(ui: Ui, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    reach(ui)
    from ebla.cli.frame import quiet
    from ebla.deployment import open_client
    from ebla.placement.asking import named_actors
    from ebla.placement.config import DeploymentConfig

    name = ui.common.name or "ebla"

    async def body() -> T:
        client = await open_client(name)
        try:
            there = named_actors(DeploymentConfig(name=name).namespace)
            servers, journals = (
                [each for each in there if each.startswith(role)] for role in (TABLET_SERVER, JOURNAL_NODE)
            )
            return await work(Cluster(client, servers, journals))
        finally:
            client.close()

    return quiet.run(body())


def reach(ui: Ui) -> str:
    """Connect this process to the Ray cluster, quietly; its address. Raises Unavailable with the remedy."""
    from ebla.cli.frame import quiet

    quiet.before_ray(ui.verbose)
    from ebla.placement.connection import choose, connect_ray, local_directory

    try:
        _, target = choose(ui.common.address, local_directory())
    except Unavailable as error:
        raise NoCluster(error.message) from error
    _probe(target)
    try:
        address = connect_ray(ui.common.address)
    except Unavailable as error:
        if target != "auto":
            raise
        raise NoCluster(
            "no Ray cluster runs on this machine: start one with `ebla up --local 4`, or name one with --address or "
            "RAY_ADDRESS"
        ) from error
    quiet.end_on_sigterm()
    return address


def _probe(target: str) -> None:
    """Ray itself tries for six minutes where nobody listens, and then ends the process."""
    host, colon, port = target.rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        return
    import socket

    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except OSError as error:
        raise NoCluster(
            f"no Ray cluster answers at {target} ({error.strerror or error}): is it the address of its head, as "
            "`ray status` shows it?"
        ) from error
