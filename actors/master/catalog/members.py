"""The members of live tablets, by server and by table. The catalog keeps this up to date, so that no question reads every tablet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ebla.actors.master.catalog.records import TabletRecord


class Members:
    """`held`: the tablets of each member, by its uuid and address. `of_table`: the number of replicas by table and uuid. `appointed`:
    PacificA tablets; `primaries`: how many of them each server leads."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], dict[str, None]] = {}
        self.of_table: dict[str, dict[str, int]] = {}
        self.appointed: dict[str, None] = {}
        self.primaries: Counter[str] = Counter()

    def replace(self, before: TabletRecord | None, after: TabletRecord | None) -> None:
        """Note a tablet's next record; None instead of one that is not live."""
        old = None if before is None else before.configuration
        new = None if after is None else after.configuration
        if old is new:
            return
        if before is not None and old is not None:
            self._remove(before)
        if after is not None and new is not None:
            self._add(after)

    def at(self, address: str) -> Iterator[str]:
        """The tablets with a member at the address, each once."""
        found = [tablets for (_, at), tablets in self.held.items() if at == address]
        yield from (
            found[0] if len(found) == 1 else dict.fromkeys(each for tablets in found for each in tablets)
        )

    def of(self, uuid: str) -> Iterator[str]:
        """The tablets of which the server is a member."""
        return (tablet for (each, _), tablets in self.held.items() if each == uuid for tablet in tablets)

    def addresses(self) -> dict[str, None]:
        """Where members are."""
        return dict.fromkeys(address for _, address in self.held)

    def totals(self) -> dict[str, int]:
        """The number of replicas of each server, by its uuid."""
        found: Counter[str] = Counter()
        for (uuid, _), tablets in self.held.items():
            found[uuid] += len(tablets)
        return found

    def _add(self, record: TabletRecord) -> None:
        assert record.configuration is not None
        of_table = self.of_table.setdefault(record.table, {})
        for peer in record.configuration.peers:
            self.held.setdefault((peer.uuid, peer.address), {})[record.tablet] = None
            of_table[peer.uuid] = of_table.get(peer.uuid, 0) + 1
        if record.configuration.primary is not None:
            self.appointed[record.tablet] = None
            self.primaries[record.configuration.primary] += 1

    def _remove(self, record: TabletRecord) -> None:
        assert record.configuration is not None
        of_table = self.of_table[record.table]
        for peer in record.configuration.peers:
            self._decrease(of_table, peer.uuid)
            tablets = self.held[peer.uuid, peer.address]
            del tablets[record.tablet]
            if not tablets:
                del self.held[peer.uuid, peer.address]
        if not of_table:
            del self.of_table[record.table]
        if record.configuration.primary is not None:
            del self.appointed[record.tablet]
            self._decrease(self.primaries, record.configuration.primary)

    @staticmethod
    def _decrease(counts: dict[str, int], uuid: str) -> None:
        counts[uuid] -= 1
        if not counts[uuid]:
            del counts[uuid]
