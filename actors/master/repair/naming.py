"""Matches the name that an operator gives with servers and members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ebla.actors.master.catalog.records import TabletRecord
from ebla.actors.replication.configuration import NON_VOTER, Configuration, Peer, names
from ebla.storage.errors import InvalidArgument


def member_named(configuration: Configuration, name: str) -> Peer | None:
    found = [peer for peer in configuration.peers if names(name, peer.uuid, peer.address)]
    if len(found) > 1:
        raise ambiguous(name, [f"{peer.address} ({peer.uuid[:8]})" for peer in found])
    return found[0] if found else None


def members_of(record: TabletRecord) -> Iterable[Peer]:
    return record.configuration.peers if record.configuration is not None else ()


def has_non_voter(record: TabletRecord, address: str) -> bool:
    return any(
        peer.address == address and peer.member == NON_VOTER and not peer.promote
        for peer in members_of(record)
    )


def ambiguous(name: str, found: Sequence[str]) -> InvalidArgument:
    return InvalidArgument(f"{name!r} may mean {' or '.join(found)}; name one by its uuid")


def addresses(configuration: Configuration) -> str:
    return ", ".join(peer.address for peer in configuration.peers)
