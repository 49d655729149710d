"""The history of a catalog: the masters that served from it, in order, and how many changes each found.

The lineage is a part of the catalog and follows from its edits alone. It is compared with the newest
version of the catalog that a tablet server has seen (actors/catalog_versions.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ebla.actors.catalog_versions import CatalogVersion
from ebla.actors.master.catalog.edits import MasterBegan

# Added to the number of a master that accepts an older catalog, and to the ballots of its tablets: beyond what servers have seen.
ACCEPTED = 1 << 20
BEGINNINGS_MAX = 1000  # remembered; a server that has seen only older ones is accepted


class Beginning(msgspec.Struct, frozen=True, array_like=True):
    number: int
    start: str
    changes: int


class LineageImage(msgspec.Struct, frozen=True, array_like=True):
    catalog: str = ""
    beginnings: tuple[Beginning, ...] = ()
    changes: int = 0
    accepted: tuple[str, ...] = ()


EMPTY = LineageImage()


class Lineage:
    """`accepted`: tokens of masters whose changes may be missing here, as operators have accepted. They stay for ever: a server that
    has seen such a change may return at any time."""

    def __init__(self) -> None:
        self.changes = 0
        self.accepted: dict[str, None] = {}
        self._catalog = ""
        self._begun: dict[int, Beginning] = {}

    @property
    def begun(self) -> int:
        """The number of the last master that has begun."""
        return next(reversed(self._begun), 0)

    @property
    def version(self) -> CatalogVersion:
        assert self._begun, "no server gets the version of a catalog before a master has begun"
        return CatalogVersion(self._catalog, self.begun, self._begun[self.begun].start, self.changes)

    def unknown(self, tokens: Iterable[str]) -> tuple[str, ...]:
        """Those tokens that were not accepted before."""
        return tuple(token for token in dict.fromkeys(tokens) if token not in self.accepted)

    def begin(self, edit: MasterBegan) -> None:
        assert edit.number > self.begun and edit.accepted == self.unknown(edit.accepted), edit
        self.accepted.update(dict.fromkeys(edit.accepted))
        self._catalog = self._catalog or edit.start
        self._begun[edit.number] = Beginning(edit.number, edit.start, self.changes)
        if len(self._begun) > BEGINNINGS_MAX:
            del self._begun[next(iter(self._begun))]

    def has(self, seen: CatalogVersion) -> bool:
        """Whether this catalog has the version that a server has seen.

        Also true for a version of another catalog, one too old to be compared, and one of a master whose changes an operator gave up.
        """
        if seen.start in self.accepted:
            return True
        if seen.catalog != self._catalog or seen.begun < next(iter(self._begun), 0):
            return True
        known = self._begun.get(seen.begun)
        if known is None or known.start != seen.start:
            return False
        later = (beginning.changes for number, beginning in self._begun.items() if number > seen.begun)
        return seen.changes <= next(later, self.changes)

    def image(self) -> LineageImage:
        if not self._begun and not self.changes:
            return EMPTY
        return LineageImage(self._catalog, tuple(self._begun.values()), self.changes, tuple(self.accepted))

    def load(self, image: LineageImage) -> None:
        self._catalog, self.changes = image.catalog, image.changes
        self._begun = {beginning.number: beginning for beginning in image.beginnings}
        self.accepted = dict.fromkeys(image.accepted)
