"""Messages between tablet servers and masters about PacificA tablets.

    leases       server -> every master: Beacon, its own small call; only the active master answers
    ends         a role on the same host -> the active master -> all other servers: ProcessEnded
    requests     the primary's server -> the active master: ConfigurationsRequest, one call for all tablets of the server
    orders       the active master -> a server: AppointRequest, one call for all tablets of the server

An answer to a request and an order say the same: the configurations that are durable in the catalog, and the lease of the receiver in which they
count. Either may be lost, late or doubled (tablet/pacifica, detector/).
"""

from __future__ import annotations

import msgspec

from ebla.actors.catalog_versions import CatalogVersion
from ebla.actors.messages import ServerInstance
from ebla.actors.replication.configuration import Configuration


class Beacon(msgspec.Struct, frozen=True):
    """`lease`: the number of the lease that the sender has, or wants (detector/lease.py). `seen`: the version of the catalog that
    the sender has seen; a master on an older copy gives no lease. `lease_s`: how long the sender serves after an acknowledged beacon left."""

    instance: ServerInstance
    lease: int
    lease_s: float
    seen: CatalogVersion | None = None


class BeaconReply(msgspec.Struct, frozen=True):
    """`refused`: why the beacon is not acknowledged, "" if it is."""

    refused: str = ""


class ProcessEnded(msgspec.Struct, frozen=True):
    """The sender has seen this process of a tablet server end: it is certain that it neither serves nor writes."""

    process: ServerInstance


class Requested(msgspec.Struct, frozen=True):
    """The configuration of the next ballot that a tablet's primary wants. `successor`: the process of another primary, which held
    everything when the sender stepped down for it."""

    tablet: str
    configuration: Configuration
    successor: ServerInstance | None = None


class ConfigurationsRequest(msgspec.Struct, frozen=True):
    instance: ServerInstance
    requested: tuple[Requested, ...]


class Appointed(msgspec.Struct, frozen=True):
    """The configuration in the catalog, of the tablet's latest ballot."""

    tablet: str
    configuration: Configuration


class Appointments(msgspec.Struct, frozen=True):
    """The durable configurations of the catalog, for the process that began with `start`, in its lease `lease`."""

    start: str
    lease: int
    appointed: tuple[Appointed, ...]


class AppointRequest(msgspec.Struct, frozen=True):
    dest_uuid: str
    appointments: Appointments


class AppointReply(msgspec.Struct, frozen=True):
    """`refused`: for each tablet that did not follow, why. `declined`: those of them that have no running replica here, or only
    an old copy. This process never leads them in the ballot of the order, nor in an earlier one, even if their replicas run later."""

    refused: dict[str, str] = {}
    declined: tuple[str, ...] = ()
