"""Which server or member an operator's word names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ebla.actors.master.catalog.records import TabletRecord
from ebla.actors.replication.configuration import NON_VOTER, Configuration, Peer
from ebla.storage.errors import InvalidArgument

UUID_PREFIX_MIN = 4


def member_named(configuration: Configuration, word: str) -> Peer | None:
    found = [peer for peer in configuration.peers if names(word, peer.uuid, peer.address)]
    if len(found) > 1:
        raise ambiguous(word, [f"{peer.address} ({peer.uuid[:8]})" for peer in found])
    return found[0] if found else None


def members_of(record: TabletRecord) -> Iterable[Peer]:
    return record.configuration.peers if record.configuration is not None else ()


def has_non_voter(record: TabletRecord, address: str) -> bool:
    return any(
        peer.address == address and peer.member == NON_VOTER and not peer.promote
        for peer in members_of(record)
    )


def names(word: str, uuid: str, address: str) -> bool:
    """A uuid, or how it begins; an address, or the host in it."""
    if word in (uuid, address, address.rpartition("/")[2]):
        return bool(word)
    return len(word) >= UUID_PREFIX_MIN and uuid.startswith(word)


def ambiguous(word: str, found: Sequence[str]) -> InvalidArgument:
    return InvalidArgument(f"{word!r} may mean {' or '.join(found)}; name one by its uuid")


def addresses(configuration: Configuration) -> str:
    return ", ".join(peer.address for peer in configuration.peers)
