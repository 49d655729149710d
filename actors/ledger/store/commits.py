"""The commits of a ledger store, and how long the oldest one has been waiting for the disk."""

from __future__ import annotations

from collections.abc import Sequence

from ebla.actors.world import World
from ebla.storage.environment import Change, Environment
from ebla.storage.errors import DiskFailed


class Commits:
    def __init__(self, world: World, environment: Environment) -> None:
        self._world = world
        self._environment = environment
        self._begun: dict[object, float] = {}  # those under way, the oldest first

    @property
    def oldest_s(self) -> float:
        """The age of the oldest commit under way; 0 if there is none."""
        return max((self._world.now() - began for began in self._begun.values()), default=0.0)

    async def commit(self, changes: Sequence[Change]) -> None:
        """A failure of the disk ends the store. Raises DiskFull."""
        commit = object()
        self._begun[commit] = self._world.now()
        try:
            await self._environment.commit(changes)
        except DiskFailed as error:
            self._world.fail(error)
            raise
        finally:
            del self._begun[commit]
