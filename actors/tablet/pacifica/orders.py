"""The master's orders, and the requests of this server's primaries to the master.

orders      the verb "appoint": the answer leaves at once, because an order that is lost is repeated. A replica follows only
            if the order is for this process, and for the lease that it names
declines    an order to lead that finds no running replica, one that is an old copy, or a server that stops. The process then never leads in this
            ballot, nor in an earlier one: the master may appoint another at once, however late any message is
requests    as long as a core asks for a configuration, one call for all of them goes to each master, every ASK_AGAIN_S, and
            at once for a new one. Only the active master answers, with what it has made durable: that is an order too
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from ebla.actors import errors
from ebla.actors.messages import ServerInstance
from ebla.actors.messages.appointments import (
    Appointed,
    Appointments,
    AppointReply,
    AppointRequest,
    ConfigurationsRequest,
    Requested,
)
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.tablet.lifecycle.verbs import Verbs
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.pacifica.core import PacificaCore
from ebla.actors.world import World, rpc
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

ASK_AGAIN_S = 0.2
CALLS_MAX = 2  # under way to one master
CALL_TIMEOUT_S = 3.0


@dataclass(eq=False)
class Orders:
    """`closing`: the server is about to stop, and takes no leadership over. `report`: reports a tablet to the masters."""

    world: World
    options: TabletServerOptions
    identity: Identity
    rounds: Rounds
    lifecycle: Lifecycle
    report: Callable[[str], None]

    def __post_init__(self) -> None:
        self.closing = False
        self._calls = dict.fromkeys(self.options.masters, 0)
        self._troubles: dict[str, str] = {}  # by master: why it did not answer the last request
        self._declined: dict[str, int] = {}  # by tablet: the last ballot that this process declined

    def start(self) -> None:
        self.world.spawn(self._run(), "requests to the master")

    # -- orders

    def follow(self, appointments: Appointments) -> AppointReply:
        """Give each replica its configuration. Those that do not follow are reported, because the master may take them
        for well. Raises IllegalState if all this is for another process: it may know more than this one, or less."""
        start = self.identity.instance.start
        if appointments.start != start:
            raise errors.IllegalState(
                f"the order is for the process {appointments.start} of server {self.identity.uuid}, and this is {start}; send it "
                "again, with the lease of this one"
            )
        refused: dict[str, str] = {}
        declined: list[str] = []
        for each in appointments.appointed:
            tablet, ballot = each.tablet, each.configuration.index
            try:
                why = self._follow(each, appointments.lease)
            except errors.IllegalState as error:
                why = str(error)
                declined.append(tablet)
                self._declined[tablet] = max(self._declined.get(tablet, 0), ballot)
            if why:
                refused[tablet] = why
                self.report(tablet)
        return AppointReply(refused, tuple(declined))

    def _follow(self, appointed: Appointed, lease: int) -> str:
        """Return why the replica does not follow, "" if it does. Raises IllegalState if it cannot lead: that is declined."""
        tablet, configuration = appointed.tablet, appointed.configuration
        replica, now = self.lifecycle.replicas.get(tablet), self.world.now()
        mine, declined = configuration.primary == self.identity.uuid, self._declined.get(tablet, 0)
        if replica is None or replica.state != RUNNING:
            state = self.lifecycle.state_of(tablet)
            raise errors.IllegalState(f"the replica is {state}", tablet=tablet, state=state)
        core = replica.core
        if not isinstance(core, PacificaCore) or configuration.primary is None:
            return "the master appoints primaries of PacificA tables only"
        if self.closing and mine and not replica.leads:
            raise errors.IllegalState("the server is stopping", tablet=tablet, state=replica.state)
        if mine and configuration.index <= declined:
            core.require_no_older_copy(configuration)  # a later ballot would not help
            self.rounds.step(replica, core.decline, now, configuration.index)
            return f"this process has declined to lead in ballot {declined}; appoint it in a later one"
        return self.rounds.step(replica, _appoint, core, now, configuration, lease)

    # -- requests

    async def _run(self) -> None:
        while True:
            requested = self._requested()
            if not requested:
                await self.rounds.asked.wait()
                continue
            for master, calls in self._calls.items():
                if calls < CALLS_MAX:
                    self._calls[master] += 1
                    self.world.spawn(self._ask(master, requested), f"requests to {master}")
            with contextlib.suppress(TimeoutError):
                async with self.world.clock.timeout(ASK_AGAIN_S):
                    await self.rounds.asked.wait()

    def _requested(self) -> tuple[Requested, ...]:
        """The requests that are not answered yet; forgets the others."""
        asking = self.rounds.asking
        for tablet, (replica, asked) in list(asking.items()):
            if replica.state != RUNNING or replica.core.asked != asked:
                del asking[tablet]
        return tuple(
            Requested(tablet, asked, _successor(replica)) for tablet, (replica, asked) in asking.items()
        )

    async def _ask(self, master: str, requested: tuple[Requested, ...]) -> None:
        request = ConfigurationsRequest(self.identity.instance, requested)
        try:
            answer = await self.world.network.call(
                master, "request_configurations", request, Appointments, CALL_TIMEOUT_S
            )
            self.identity.require_believed()
            refused = self.follow(answer).refused
        except errors.NotActive:
            return
        except EblaError as error:
            self.identity.failed(error)
            self._note(master, str(error))
            return
        finally:
            self._calls[master] -= 1
        self._note(master, "")
        for tablet, why in refused.items():
            log.info("the answer of %s about tablet %s is not followed: %s", master, tablet, why)

    def _note(self, master: str, trouble: str) -> None:
        if trouble != self._troubles.get(master, ""):
            self._troubles[master] = trouble
            log.info("%s and requests for configurations: %s", master, trouble or "answered")


def _successor(replica: Replica) -> ServerInstance | None:
    core = replica.core
    assert isinstance(core, PacificaCore), ("only such a core asks", replica.tablet)
    return core.successor


def _appoint(core: PacificaCore, now: float, configuration: Configuration, lease: int) -> str:
    """Appoint, and return the refusal, "" if there is none. A refusal may change the core, so it must not end its step."""
    try:
        core.appoint(now, configuration, lease)
    except errors.Unavailable as refusal:
        return str(refusal)
    return ""


class OrderVerbs(Verbs):
    orders: Orders

    @rpc
    async def appoint(self, request: AppointRequest) -> AppointReply:
        self._require(request.dest_uuid)
        return self.orders.follow(request.appointments)
