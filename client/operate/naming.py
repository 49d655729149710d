"""Which server, host or replica an operator means, and how an operation is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ebla.actors.replication.configuration import names
from ebla.storage.errors import EblaError
from ebla.wording import host_of, short

if TYPE_CHECKING:
    from ebla.actors.replication.configuration import Configuration, Peer
    from ebla.health.verdicts import ReplicaHealth, TabletHealth

TABLET_SERVER, JOURNAL_NODE, LEDGER_STORE = "tablet-server/", "journal/", "ledger-store/"
REPAIRERS = ("replication-worker/", "auditor/")


class Refused(EblaError):
    """The operation stopped before it changed anything. `hint` is the next step."""

    fields = ("hint",)
    hint: str | None


def meant(word: str, places: Iterable[tuple[str, str]]) -> str | None:
    """The uuid of the one server that `word` names, of `places` (uuid and address). Raises Refused if `word` names several:
    a server that lost its directory comes back at the same address with another uuid."""
    found = [(uuid, address) for uuid, address in places if names(word, uuid, address)]
    if len(found) > 1:
        servers = " or ".join(f"{host_of(address)} ({uuid})" for uuid, address in found)
        raise Refused(f"{word!r} may mean {servers}", hint="name one by its uuid")
    return found[0][0] if found else None


def replica_meant(word: str, tablet: TabletHealth) -> ReplicaHealth:
    """The tablet's replica on the server that `word` names. Raises Refused if there is none, or several."""
    uuid = meant(word, [(replica.uuid, replica.address) for replica in tablet.replicas])
    if uuid is None:
        hosts = ", ".join(host_of(replica.address) for replica in tablet.replicas)
        raise Refused(
            f"tablet {short(tablet.tablet)} has no replica at {word!r}; it has replicas at {hosts}", hint=None
        )
    return next(replica for replica in tablet.replicas if replica.uuid == uuid)


def find(configuration: Configuration, word: str) -> Peer | None:
    """The member that `word` names; of several the one that was added last."""
    return next(
        (peer for peer in reversed(configuration.peers) if names(word, peer.uuid, peer.address)), None
    )
