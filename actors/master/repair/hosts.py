"""Requests of operators about servers: to drain, to maintain, to suspend or to forget one, or to allow only some. Each is one edit.

The master's rules do the rest, also on a later active master. A request may be repeated at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from ebla.actors.errors import NotFound, Unavailable
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.edits import (
    Edit,
    Mark,
    ServerAllowed,
    ServerDraining,
    ServerForgotten,
    ServerMaintained,
    ServerSuspended,
)
from ebla.actors.master.catalog.scribe import Scribe
from ebla.actors.master.cluster.levels import Levels
from ebla.actors.master.cluster.reports import Views
from ebla.actors.master.cluster.servers import Server, Servers, is_unlisted
from ebla.actors.master.messages import (
    AllowReply,
    AllowRequest,
    Drained,
    DrainReply,
    DrainRequest,
    ForgetReply,
    ForgetRequest,
    Maintained,
    MaintainReply,
    MaintainRequest,
    Suspended,
    SuspendReply,
    SuspendRequest,
)
from ebla.actors.master.repair.naming import ambiguous, has_non_voter, members_of
from ebla.actors.master.repair.repairs import Repairs, held_at
from ebla.actors.replication.configuration import names
from ebla.actors.world import World, rpc
from ebla.storage.errors import InvalidArgument

HEARTBEATS_MISSING = (
    "this master has just begun to serve and may not have a heartbeat of every server; try again"
)


@dataclass(eq=False)
class Hosts:
    """`wake` starts the background work now."""

    _world: World
    _catalog: Catalog
    _scribe: Scribe
    _views: Views
    _servers: Servers
    _repairs: Repairs
    _levels: Levels
    _wake: Callable[[], None]

    def known(self, name: str) -> list[Server]:
        return [server for server in self._servers.known() if names(name, server.uuid, server.address)]

    def unknown(self, name: str) -> NotFound | Unavailable:
        if self._world.now() < self._repairs.begins_at:
            return Unavailable(HEARTBEATS_MISSING)
        hosts = ", ".join(server.address for server in self._servers.known())
        return NotFound(f"there is no server {name!r}; there are {hosts or 'none'}", what=name)

    # -- marks -----------------------------------------------------------------------------------------------

    @rpc
    async def drain(self, request: DrainRequest) -> DrainReply:
        """Mark a server, durably; its replicas move in the background."""
        addresses = self._marked(request.server)
        await self._mark("drain", ServerDraining, addresses, self._catalog.draining, request.on)
        return DrainReply(tuple(self._left(address) for address in addresses), self._levels.why_frozen())

    @rpc
    async def maintain(self, request: MaintainRequest) -> MaintainReply:
        """Mark a server, or end its maintenance, durably.

        After the end, silent replicas there are replaced.
        """
        addresses = self._marked(request.server)
        maintained = self._catalog.maintained
        await self._mark("maintain", ServerMaintained, addresses, maintained, request.on)
        now = self._world.now()
        return MaintainReply(
            tuple(
                Maintained(
                    address,
                    address in maintained,
                    self._servers.answers_at(address, now),
                    sum(True for _ in held_at(self._catalog, address)),
                )
                for address in addresses
            )
        )

    @rpc
    async def suspend(self, request: SuspendRequest) -> SuspendReply:
        """Suspend a server, or end that, durably. Without a lease it leads no PacificA tablet; its replicas follow and vote."""
        addresses = self._marked(request.server)
        suspended = self._catalog.suspended
        await self._mark("suspend", ServerSuspended, addresses, suspended, request.on)
        return SuspendReply(
            tuple(Suspended(each, each in suspended, self._primaries(each)) for each in addresses)
        )

    @rpc
    async def allow_only(self, request: AllowRequest) -> AllowReply:
        """Allow the named servers and no others, durably; or all again. Those that are not on the list are as if suspended."""
        allowed, members = self._catalog.allowed, self._catalog.members.addresses()
        known = dict.fromkeys([*members, *(server.address for server in self._servers.known())])
        wanted = None if request.servers is None else self._listed(request.servers)

        def decide() -> Sequence[Edit]:
            ended = [ServerAllowed(each, False) for each in allowed if each not in (wanted or ())]
            new = [ServerAllowed(each, True) for each in wanted or () if each not in allowed]
            return [] if wanted is None else [*new, *ended]

        if decide():
            await self._scribe.change("suspend", decide, self._wake)
        unlisted = [each for each in known if is_unlisted(self._catalog, each)]
        return AllowReply(
            tuple(allowed),
            tuple(each for each in allowed if each not in known),
            tuple(Suspended(each, True, self._primaries(each)) for each in unlisted),
        )

    def _listed(self, names: Sequence[str]) -> list[str]:
        """List the addresses of the named servers. One that is not known is taken for a host that will join; a list without
        any that is known is a mistake."""
        found = {name: self._addresses(name) for name in names}
        new = [name for name in found if not found[name]]
        if new and (len(new) == len(found) or self._world.now() < self._repairs.begins_at):
            raise self.unknown(", ".join(new))
        joins = [f"tablet-server/{name.rpartition('/')[2]}" for name in new]
        return list(dict.fromkeys([*(each for known in found.values() for each in known), *joins]))

    def _primaries(self, address: str) -> int:
        known = [record.appointed for record in held_at(self._catalog, address)]
        led = (each.peer(each.primary or "") for each in known if each is not None)
        return sum(peer is not None and peer.address == address for peer in led)

    async def _mark(
        self,
        name: str,
        edit: type[Mark],
        addresses: Sequence[str],
        marked: Container[str],
        on: bool | None,
    ) -> None:
        def decide() -> Sequence[Edit]:
            return [edit(each, on) for each in addresses if on is not None and on != (each in marked)]

        def conclude() -> None:
            self._views.settle_held(self._catalog, addresses)
            self._wake()

        if decide():
            await self._scribe.change(name, decide, conclude)

    def _marked(self, name: str) -> list[str]:
        addresses = self._addresses(name)
        if not addresses:
            raise self.unknown(name)
        return addresses

    def _addresses(self, name: str) -> list[str]:
        """List the matching addresses, including servers without a heartbeat since the master started."""
        addresses = dict.fromkeys(server.address for server in self.known(name))
        ended = (members_of(self._catalog.tablets[tablet]) for tablet in self._catalog.ended)
        held = [
            *self._catalog.members.held,
            *((peer.uuid, peer.address) for peers in ended for peer in peers),
        ]
        addresses |= dict.fromkeys(address for uuid, address in held if names(name, uuid, address))
        return list(addresses | dict.fromkeys(self._marks_of(name)))

    def _marks_of(self, name: str) -> list[str]:
        marked = (*self._catalog.draining, *self._catalog.maintained, *self._catalog.suspended)
        return [address for address in marked if names(name, "", address)]

    def _left(self, address: str) -> Drained:
        held = list(held_at(self._catalog, address))
        return Drained(
            address,
            address in self._catalog.draining,
            len(held),
            self._repairs.blocked(self._catalog, self._servers, address, self._world.now()),
            tuple(record.tablet for record in held if has_non_voter(record, address)),
            self._repairs.waits_for(self._catalog, self._servers, address, self._world.now()),
            self._repairs.leaderless(self._catalog, self._servers, address, self._world.now()),
        )

    @rpc
    async def forget_server(self, request: ForgetRequest) -> ForgetReply:
        """Forget a server that is gone for good, durably: nothing waits for it any more. With `dry` nothing is changed."""
        catalog = self._catalog
        address, uuids = self._forgettable(request.server)

        def decide() -> Sequence[Edit]:
            self._require_gone(address, uuids)
            new = tuple(uuid for uuid in uuids if uuid not in catalog.forgotten)
            return [ServerForgotten(address, new)] if new or self._marks_of(address) else []

        def conclude() -> None:
            self._servers.forget(uuids)
            for uuid in uuids:
                self._views.forget(uuid)
            self._wake()

        if decide() and not request.dry:
            await self._scribe.change("forget_server", decide, conclude)
        return ForgetReply(address, tuple(uuids))

    def _forgettable(self, name: str) -> tuple[str, list[str]]:
        """Return the address, and all its known uuids."""
        records = self._catalog.tablets.values()
        known = [(server.uuid, server.address) for server in self._servers.known()]
        known += [(peer.uuid, peer.address) for record in records for peer in record.holders()]
        known += self._catalog.forgotten.items()
        addresses = dict.fromkeys(address for uuid, address in known if names(name, uuid, address))
        addresses |= dict.fromkeys(self._marks_of(name))
        if not addresses:
            raise self.unknown(name)
        if len(addresses) > 1:
            raise ambiguous(name, list(addresses))
        (address,) = addresses
        return address, list(dict.fromkeys(uuid for uuid, at in known if at == address))

    def _require_gone(self, address: str, uuids: Sequence[str]) -> None:
        now = self._world.now()
        if now < self._repairs.begins_at:
            raise Unavailable(HEARTBEATS_MISSING)
        if self._servers.answers_at(address, now) or any(
            self._servers.is_alive(each, now) for each in uuids if each not in self._catalog.forgotten
        ):
            raise Unavailable(
                f"{address} sent a heartbeat a moment ago; to remove it for good, first run `ebla nodes drain "
                f"{address.rpartition('/')[2]} --wait --stop`"
            )
        held = sum(True for _ in held_at(self._catalog, address))
        if held:
            raise InvalidArgument(
                f"{address} is still a member of {held} tablets; wait until they have replaced it, which needs a host for each "
                "(`ebla check`), or if a majority is lost, see `ebla tablet unsafe-change-config`"
            )
