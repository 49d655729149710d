"""The checks that every call of a tablet server begins with: is the server up, is it the one that is meant, and which
replica does the call concern?"""

from __future__ import annotations

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.world import World


class Verbs:
    """The base of the server and of the parts of its interface."""

    world: World
    identity: Identity
    lifecycle: Lifecycle
    replicas: dict[str, Replica]
    running: bool

    @property
    def instance(self) -> m.ServerInstance:
        return self.identity.instance

    def _replica(self, tablet: str) -> Replica:
        self._require_running()
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

    def _require_running(self) -> None:
        if not self.running:
            raise errors.NotRunning(
                f"{self.world.address} is starting or stopping; try again", state="starting"
            )
        self.identity.require_believed()

    def _require(self, uuid: str) -> None:
        """Refuse a call that was meant for another server, which had this address before."""
        self._require_running()
        if uuid != self.instance.uuid:
            raise errors.WrongServer(
                f"{self.world.address} is server {self.instance.uuid}, the call was for {uuid}",
                wanted=uuid,
                found=self.instance.uuid,
            )
