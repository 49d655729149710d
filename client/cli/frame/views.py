"""Verdicts as tables, for `status`, `nodes`, `check` and `tablet list`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from ebla.cli.frame.render import listing, status
from ebla.health.masters import is_served
from ebla.health.verdicts import OUT_OF_ORDER
from ebla.wording import age, brief, count, host_of, number, short, size

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ebla.actors.messages import ServerState, ServerStatus
    from ebla.health.verdicts import ClusterHealth, ReplicaHealth, ServerHealth, TabletHealth
    from ebla.operate.quarantine import Kept

REASONS_MAX = 20
REASON_MAX = 180  # characters: the remedy is at the end
LINE_MAX = 78
QUARANTINE_BYTES = 1 << 30
QUARANTINE_S = 14 * 86_400.0


def health_line(health: ClusterHealth) -> Text:
    """One line, such as `HEALTHY: 2 tables, 16 tablets, 4 of 4 servers up`, with masters and journal nodes if there are
    several, and sessions if there are any."""
    up = sum(server.status in ("HEALTHY", "DISK_FULL") for server in health.servers)
    others = [
        ([master.status for master in health.masters], "master"),
        ([node.status for node in health.journals], "journal node"),
    ]
    line = status(health.status)
    line.append(": ", style="default")
    line.append(
        f"{_tables_known(health)}, {up} of {count(len(health.servers), 'server')} up",
        style="default",
    )
    for statuses, noun in others if len(health.journals) > 1 else ():
        line.append(f", {statuses.count('HEALTHY')} of {count(len(statuses), noun)}", style="default")
    if sessions := sum(master.sessions for master in health.masters):
        line.append(f", {count(sessions, 'session')}", style="default")
    return line


def _tables_known(health: ClusterHealth) -> str:
    if not is_served(health.masters):
        return "tables not known"
    return f"{count(len(health.tables), 'table')}, {count(len(health.tablets), 'tablet')}"


NEXT_STEPS = {
    "RECOVERING": "wait, it heals by itself; `ebla tablet copies` shows the copies",
    "DEGRADED": "bring it back; `ebla up` starts the roles that do not run",
    "UNDER_REPLICATED": "bring the host back, or wait: the tablets heal if there is another host for them",
    "DISK_FULL": "when there is space, writes resume by themselves",
    "CONSENSUS_MISMATCH": "run `ebla check` again in a few seconds; if it stays, report it",
    "CHECKSUM_MISMATCH": "compare the table with its source (`ebla verify`), and report it",
    "UNAVAILABLE": "bring the hosts back, `ebla up` starts their roles; nothing is lost meanwhile",
}


def reasons(health: ClusterHealth) -> list[str]:
    """Each trouble once, and what to do."""
    shown = [line for reason in health.reasons[:REASONS_MAX] for line in _wrapped(reason)]
    if len(health.reasons) > REASONS_MAX:
        shown.append(f"  and {len(health.reasons) - REASONS_MAX} more")
    return shown + _wrapped(f"next: {NEXT_STEPS[health.status]}") if health.reasons else shown


def warnings(health: ClusterHealth) -> list[str]:
    """Lines for problems that do not make the deployment unhealthy yet."""
    low = [f"warning: {server.address} has {server.low}" for server in health.servers if server.low]
    return [line for warning in low[:REASONS_MAX] for line in _wrapped(warning)]


def quarantined(kept: Kept) -> list[str]:
    """A hint if the quarantine keeps much data, or old data."""
    now_s = datetime.now(UTC).timestamp()
    age_s = 0.0 if kept.oldest_us is None else now_s - kept.oldest_us / 1e6
    if kept.bytes < QUARANTINE_BYTES and age_s < QUARANTINE_S:
        return []
    return _wrapped(
        f"note: quarantine keeps {size(kept.bytes)} of deleted replicas, the oldest for {age(age_s)}; "
        "`ebla tablet quarantine list` shows the data, `quarantine purge` frees the space"
    )


def servers(health: ClusterHealth) -> Table:
    rows = (
        (
            host_of(server.address),
            server.status,
            server.replicas,
            server.leaders,
            server.failed,
            age(server.heartbeat_age_s),
            "; ".join(filter(None, [_marks(server), server.error if server.status == "STOPPED" else ""])),
        )
        for server in health.servers
    )
    return listing(("HOST", "STATUS", "REPLICAS>", "LEADERS>", "FAILED>", "HEARTBEAT>", "REMARK"), rows)


def tables(health: ClusterHealth) -> Table:
    rows = (
        (
            table.name,
            table.status,
            sum(table.tablets.values()),
            table.wanted,
            size(table.bytes),
        )
        for table in health.tables
    )
    return listing(("TABLE", "STATUS", "TABLETS>", "REPLICAS>", "SIZE>"), rows)


def tablets(health: Iterable[TabletHealth], with_table: bool = True) -> Table:
    rows = []
    for tablet in health:
        leader = next((r for r in tablet.replicas if r.uuid == tablet.leader), None)
        row: list[Any] = [tablet.table] if with_table else []
        row += [
            short(tablet.tablet),
            tablet.bucket,
            tablet.status,
            f"{tablet.healthy}/{tablet.wanted}",
            host_of(leader.address) if leader else "-",
            tablet.term,
            leader.commit_index if leader else None,
            size(leader.bytes) if leader else "-",
        ]
        rows.append(row)
    headers = ("TABLET", "PART>", "STATUS", "OK>", "LEADER", "TERM>", "INDEX>", "SIZE>")
    return listing((("TABLE",) if with_table else ()) + headers, rows)


def replicas(tablet: TabletHealth) -> Table:
    """Each replica by its own report; with digests fewer log positions, and FOLLOWS only if replicas disagree about the leader,
    so that the table fits."""
    addresses = {replica.uuid: host_of(replica.address) for replica in tablet.replicas}
    digested = any(replica.digest for replica in tablet.replicas)
    headers = ("APPLIED>", "ROWS>", "DIGEST") if digested else ("APPLIED>", "FLUSHED>", "LAG>")
    agreed = {replica.leader for replica in tablet.replicas if replica.status == "HEALTHY"} == {tablet.leader}
    rows = []
    for replica in tablet.replicas:
        follows = "-" if replica.leader is None else addresses.get(replica.leader, short(replica.leader))
        follows = "" if agreed else follows
        row: list[Any] = [f"  {host_of(replica.address)}", replica.status, _role(replica), follows]
        positions = _digest(replica) if digested else _positions(replica)
        rows.append([*row, number(replica.term), *positions, _remark(replica)])
    return listing(("  HOST", "STATUS", "ROLE", "FOLLOWS", "TERM>", *headers, "REMARK"), rows)


def _role(replica: ReplicaHealth) -> str:
    """A voter's own report (leader, follower or candidate), or the kind of another member."""
    if replica.member in (None, "voter"):
        return replica.role or "-"
    return str(replica.member)


def _remark(replica: ReplicaHealth) -> str:
    """The facts that only its leader or the master knows of a replica."""
    remarks = [f"{replica.health} to its leader"] if replica.health in OUT_OF_ORDER else []
    if replica.replace:
        remarks.append("to be replaced")
    return ", ".join([*remarks, *filter(None, [_marks(replica)])])


def _marks(marked: ServerHealth | ReplicaHealth) -> str:
    """The operators' marks on a server."""
    marks = (marked.draining, "draining"), (marked.maintained, "in maintenance")
    return ", ".join(word for on, word in marks if on)


def _positions(replica: ReplicaHealth) -> list[str]:
    positions = (replica.applied_index, replica.flushed_index, replica.lag)
    return [number(position) for position in positions]


def _digest(replica: ReplicaHealth) -> list[str]:
    return [number(replica.applied_index), number(replica.rows), (replica.digest or "-")[:16]]


def tablet(judged: TabletHealth) -> list[Any]:
    """One tablet: its status, the reasons, and each replica's report."""
    forced = []
    if judged.unsafe:
        times = count(judged.unsafe, "time")
        forced = [
            f"  a configuration was forced on it without a majority {times}: acknowledged writes may be missing since then"
        ]
    reasons = [line for reason in judged.reasons for line in _wrapped(reason)]
    return [tablet_title(judged), *reasons, *forced, replicas(judged)]


def _wrapped(reason: str) -> list[str]:
    """The reason in lines; further lines are indented more."""
    return wrap(
        brief(reason, REASON_MAX),
        LINE_MAX,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )


def tablet_title(tablet: TabletHealth) -> Text:
    line = status(tablet.status)
    line.append(
        f"  {tablet.table} tablet {short(tablet.tablet)} (part {tablet.bucket})", style="bold default"
    )
    return line


def silent_servers(silent: dict[str, str]) -> list[str]:
    return [f"  {host_of(address)} does not answer: {brief(why)}" for address, why in silent.items()]


def nodes(
    servers: Iterable[ServerHealth], listed_servers: dict[str, ServerStatus], states: dict[str, ServerState]
) -> Table:
    """Servers and the space they use, by the servers' own states, or else by their last heartbeats to the master."""
    rows = []
    for server in servers:
        state = states.get(server.address)
        listed = listed_servers.get(server.address)
        rows.append(
            (
                host_of(server.address),
                server.status,
                server.replicas,
                server.leaders,
                size(state.disk_bytes if state else listed.disk_bytes if listed else None),
                size(server.free_bytes),
                age(server.heartbeat_age_s),
                _marks(server),
            )
        )
    headers = "HOST STATUS REPLICAS> LEADERS> DISK> FREE> SEEN> REMARK"
    return listing(headers.split(), rows)
