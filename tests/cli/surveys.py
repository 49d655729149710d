"""Reports of servers and surveys of a deployment of one table with one tablet, and the verdict on it."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from ebla.actors import messages as m
from ebla.actors.messages.pacifica import PacificaView
from ebla.actors.messages.raft import RaftView
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.health.tablets import judge
from ebla.health.verdicts import Digests, Survey, TabletHealth, Unanswered
from ebla.storage.schema import TableSchema
from tests.client.toy import MASTER, address

SCHEMA = TableSchema.from_arrow(pa.schema([pa.field("k", pa.int64(), False)]), ["k"])
HOSTS = ("a", "b", "c")
replace = msgspec.structs.replace


def uuid(host: str) -> str:
    return host * 32


def configuration(hosts: tuple[str, ...] = HOSTS, index: int = -1) -> Configuration:
    return Configuration(tuple(Peer(uuid(host), address(host)) for host in hosts), index)


def report(host: str, leader: str | None = "a", **other: Any) -> m.ReplicaReport:
    made = m.ReplicaReport(
        tablet="t1",
        state="running",
        configuration=configuration(),
        applied_index=100,
        flushed_index=90,
        rows_bytes=4096,
    )
    view = RaftView("leader" if host == leader else "follower", 3, uuid(leader) if leader else None, 100, 100)
    seen = {name: other.pop(name) for name in view.__struct_fields__ if name in other}
    return replace(made, view=replace(view, **seen), **other)


def state(host: str, *replicas: m.ReplicaReport) -> m.ServerState:
    instance = m.ServerInstance(uuid(host), 1, "s")
    return m.ServerState(instance, address(host), host, replicas, 0, 0, 0)


def status_of(host: str, **other: Any) -> m.ServerStatus:
    made = m.ServerStatus(
        uuid=uuid(host),
        seqno=1,
        address=address(host),
        host=host,
        alive=True,
        heartbeat_age_s=0.2,
        replicas=1,
        leaders=0,
        disk_bytes=0,
        memory_bytes=0,
        version="0.1.0",
    )
    return replace(made, **other)


def table(hosts: tuple[str, ...] = HOSTS, leader: str | None = "a", replicas: int = 3) -> m.TableInfo:
    places = tuple(
        m.ReplicaLocation(uuid(host), address(host), "leader" if host == leader else "follower", True)
        for host in hosts
    )
    tablet = m.TabletLocation("t1", 0, "running", address(leader) if leader else None, 3, places)
    return m.TableInfo("T", "flights", "running", SCHEMA, replicas, "raft", 0, (tablet,))


def pacifica_report(host: str, primary: str | None = "a", **other: Any) -> m.ReplicaReport:
    """A replica in ballot 4. By default `a` is the primary, began with 90 entries and has committed all 100."""
    led = replace(configuration(index=4), primary=uuid("a"), min_members=2)
    role = "primary" if host == primary else "secondary" if primary else "inactive"
    view = PacificaView(role, 4, uuid(primary) if primary else None, 100, 100, int(host == primary), 90)
    seen = {name: other.pop(name) for name in view.__struct_fields__ if name in other}
    return replace(
        report(host), view=replace(view, **seen), configuration=other.pop("configuration", led), **other
    )


def pacifica_table(leader: str | None = "a", min_members: int = 2) -> m.TableInfo:
    return replace(table(leader=leader), replication="pacifica", min_members=min_members)


def with_leases(survey: Survey, **left_s: float) -> Survey:
    """All servers that answer have a lease, for 3 s unless `left_s` has another time for the host."""
    states = {
        address: each
        if isinstance(each, Unanswered)
        else replace(each, lease_left_s=left_s.get(each.host, 3.0))
        for address, each in survey.states.items()
    }
    return replace(survey, states=states)


def seen(*reports: m.ReplicaReport | Unanswered | None, info: m.TableInfo | None = None) -> Survey:
    """A survey with one report per host: Unanswered if its server is silent, None if its server lacks the replica."""
    states: dict[str, m.ServerState | Unanswered] = {}
    for host, said in zip(HOSTS, reports, strict=True):
        if isinstance(said, Unanswered):
            states[address(host)] = said
        else:
            states[address(host)] = state(host, said) if said else state(host)
    status = m.MasterStatus(m.ServerInstance("m", 1, "s"), MASTER, 1, 1, 0, 1)
    return Survey({MASTER: status}, tuple(status_of(host) for host in HOSTS), (info or table(),), states)


def with_room(survey: Survey) -> Survey:
    """Add a host without replicas."""
    return replace(
        survey, servers=(*survey.servers, status_of("d")), states={**survey.states, address("d"): state("d")}
    )


def tablet(survey: Survey, digests: dict[str, Digests] | None = None) -> TabletHealth:
    (judged,) = judge(survey, digests).tablets
    return judged


def statuses(judged: TabletHealth) -> list[str]:
    return [replica.status for replica in judged.replicas]


GONE = Unanswered("OutcomeUnknown", "no answer")
