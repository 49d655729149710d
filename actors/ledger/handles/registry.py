"""The interface by which writers, readers, recoveries and repairs know ledgers and stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ebla.actors.ledger.metadata import Metadata


class StoreInfo(msgspec.Struct, frozen=True):
    """A store. `read_only`: it takes no new entries. `leaving`: its host is being decommissioned; the registry knows that."""

    uuid: str
    address: str
    read_only: bool = False
    leaving: bool = False

    @property
    def able(self) -> bool:
        """Whether new entries may be placed there."""
        return not self.read_only and not self.leaving


Transform = Callable[[Metadata], Metadata]


class Registry(Protocol):
    """Reads are linearizable. Every method raises TimedOut or Unavailable if no master answers."""

    async def stores(self) -> list[StoreInfo]:
        """The stores that run now."""

    async def address(self, store: str) -> str | None:
        """The last known address of a store that ever registered."""

    async def read(self, ledger: int) -> Metadata:
        """Raises NotFound."""

    async def change(self, ledger: int, transform: Transform) -> Metadata:
        """Replace the metadata by `transform` of it, by compare-and-set; the transform is called again if another change comes
        first, and its errors pass. An equal result changes nothing. Returns the new metadata.

        Raises StoreLeaving if it names a store that leaves or does not run. An error that is possibly applied means that the change may have been
        made, or may be yet.
        """

    async def mark(self, ledger: int, store: str) -> None:
        """Note that this store lacks entries that it should have, for a repair."""
