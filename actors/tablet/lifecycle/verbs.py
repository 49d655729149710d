"""The checks that every call of a tablet server begins with: is the server up, is it the one that is meant, and which
replica does the call concern? Calls about one replica need that one loaded; calls about the server, and changes of its replicas,
need all."""

from __future__ import annotations

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.tablet.lifecycle.starting import Starting
from ebla.actors.world import World


class Verbs:
    """The base of the server and of the parts of its interface."""

    world: World
    identity: Identity
    lifecycle: Lifecycle
    replicas: dict[str, Replica]
    starting: Starting
    serving: bool  # the replicas that are loaded
    running: bool  # all replicas are loaded

    @property
    def instance(self) -> m.ServerInstance:
        return self.identity.instance

    def _replica(self, tablet: str) -> Replica:
        self._require_serving()
        self.starting.require_loaded(tablet)
        replica = self.replicas.get(tablet)
        if replica is None and tablet in self.lifecycle.broken:
            raise self.lifecycle.broken[tablet].refusal()
        if replica is None and self.lifecycle.state_of(tablet) == m.COPYING:
            raise errors.NotRunning(
                f"tablet {tablet} is being copied to {self.world.address}", tablet=tablet, state=m.COPYING
            )
        if replica is None:
            raise errors.TabletNotFound(f"tablet {tablet} is not on {self.world.address}", tablet=tablet)
        return replica

    def _running(self, tablet: str) -> Replica:
        """As `_replica`, of a replica that serves."""
        replica = self._replica(tablet)
        replica.require_running()
        return replica

    def _require_serving(self) -> None:
        if not self.serving:
            raise errors.NotRunning(
                f"{self.world.address} is starting or stopping; try again", state="starting"
            )
        self.identity.require_believed()

    def _require_running(self) -> None:
        self._require_serving()
        if not self.running:
            left = len(self.lifecycle.unloaded)
            raise errors.NotRunning(
                f"{self.world.address} loads its replicas, {left} are left; try again", state="starting"
            )

    def _require(self, uuid: str) -> None:
        """As `_require_addressed`, of a server that has loaded all of its replicas."""
        self._require_addressed(uuid)
        self._require_running()

    def _require_addressed(self, uuid: str) -> None:
        """Refuse a call that was meant for another server, which had this address before."""
        self._require_serving()
        if uuid != self.instance.uuid:
            raise errors.WrongServer(
                f"{self.world.address} is server {self.instance.uuid}, the call was for {uuid}",
                wanted=uuid,
                found=self.instance.uuid,
            )
