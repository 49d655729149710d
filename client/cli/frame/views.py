"""Verdicts as tables, for `status`, `nodes`, `check` and `tablet list`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar

from ebla.actors.replication.configuration import PACIFICA
from ebla.cli.frame.render import listing, status
from ebla.health.masters import is_served
from ebla.health.verdicts import (
    CLASSES,
    FULLY_HEALTHY,
    OUT_OF_ORDER,
    UNHEALTHY,
    VOTER,
    member_word,
    reasons_of_tables,
)
from ebla.wording import age, brief, count, host_of, number, short, size

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ebla.actors.messages import ServerState, ServerStatus
    from ebla.actors.replication.configuration import Forced
    from ebla.cli.frame.ui import Ui
    from ebla.health.servers import Leased
    from ebla.health.verdicts import (
        ClusterHealth,
        ReplicaHealth,
        ServerHealth,
        StoreHealth,
        TableHealth,
        TabletHealth,
    )
    from ebla.operate.quarantine import Kept

Judged = TypeVar("Judged", "TableHealth", "TabletHealth")

REASONS_MAX = 20
REASON_MAX = 180  # characters: the remedy is at the end
LINE_MAX = 78
UNBROKEN = "\N{NO-BREAK SPACE}"
QUARANTINE_BYTES = 1 << 30
QUARANTINE_S = 14 * 86_400.0


def health_line(health: ClusterHealth) -> Text:
    """`HEALTHY: 2 tables, 16 tablets, 4 of 4 servers up`, with masters and journal nodes if there are several, and ledger stores
    and sessions if there are any: one line, or two."""
    up = sum(server.status in ("HEALTHY", "DISK_FULL", "DISK_HUNG", "NO_LEASE") for server in health.servers)
    others = [
        ([master.status for master in health.masters], "master"),
        ([node.status for node in health.journals], "journal node"),
    ]
    parts = [_tables_known(health), f"{up} of {count(len(health.servers), 'server')} up"]
    for statuses, noun in others if len(health.journals) > 1 else ():
        parts.append(f"{statuses.count('HEALTHY')} of {count(len(statuses), noun)}")
    if health.stores:
        parts.append(f"{_well(health.stores)} of {count(len(health.stores), 'ledger store')}")
    if sessions := sum(master.sessions for master in health.masters):
        parts.append(count(sessions, "session"))
    line = status(health.status)
    together = ", ".join(part.replace(" ", UNBROKEN) for part in parts)
    text = "\n".join(wrap(f"{health.status}: {together}", LINE_MAX, subsequent_indent="  "))
    line.append(text[len(health.status) :].replace(UNBROKEN, " "), style="default")
    return line


def _well(stores: Sequence[StoreHealth]) -> int:
    return sum(store.status == "HEALTHY" for store in stores)


def _next(health: ClusterHealth) -> str:
    """The advice to an operator. Ledgers that are repaired need nothing, and a role that does not answer comes first."""
    if health.status == "DEGRADED" and (health.ledgers or health.ledgers_unknown):
        roles = (health.stores, health.masters, health.journals, health.servers)
        if all(each.status in ("HEALTHY", "STOPPED") for kind in roles for each in kind):
            return "`ebla autorecovery status` shows the repairs, and what they wait for"
    full = any(node.status == "DISK_FULL" for node in health.journals)
    if health.status == "UNAVAILABLE" and full and is_served(health.masters):
        return NEXT_STEPS["DISK_FULL"]
    return NEXT_STEPS[health.status]


def _tables_known(health: ClusterHealth) -> str:
    if not is_served(health.masters):
        return "tables not known"
    return f"{count(len(health.tables), 'table')}, {count(len(health.tablets), 'tablet')}"


NEXT_STEPS = {
    "RECOVERING": "wait, it heals by itself; `ebla tablet copies` shows the copies",
    "DEGRADED": "bring it back; `ebla up` starts the roles that do not run",
    "UNDER_REPLICATED": "bring the host back (`ebla up` starts local nodes again), or wait: the tablets heal if there is another host",
    "DISK_FULL": "when there is space, writes resume by themselves",
    "DISK_HUNG": "examine the disk; a host whose disk does not answer again is replaced as one that is gone",
    "CONSENSUS_MISMATCH": "run `ebla check` again in a few seconds; if it stays, report it",
    "CHECKSUM_MISMATCH": "compare the table with its source (`ebla verify`), and report it",
    "UNAVAILABLE": "bring the hosts back, `ebla up` starts their roles; nothing is lost meanwhile",
    "UNWRITABLE": "bring hosts back, or wait for learners, until min_members voters run; nothing is lost meanwhile; "
    "`ebla tablet diagnose` says what each tablet waits for",
    "UNREADABLE": "bring the hosts back, `ebla up` starts their roles; nothing is lost meanwhile; `ebla tablet diagnose` says "
    "what each tablet waits for",
    "DEAD": "bring hosts of these tablets back (`ebla tablet show`), with their disks; nothing is lost if they return",
}


def reasons(health: ClusterHealth) -> list[str]:
    """The tablets by health class, if not all are fully healthy; each trouble that `tables` does not show, and what to do."""
    listed = dict.fromkeys(reasons_of_tables(health.tables))
    others = [reason for reason in health.reasons if reason not in listed]
    classes = Counter(tablet.health_class for tablet in health.tablets)
    shown = []
    if set(classes) - {FULLY_HEALTHY}:
        ordered = [each for each in (FULLY_HEALTHY, UNHEALTHY, *CLASSES.values()) if each in classes]
        shown = ["  tablets: " + ", ".join(f"{classes[each]:,} {each}" for each in dict.fromkeys(ordered))]
    shown += [line for reason in others[:REASONS_MAX] for line in _wrapped(reason)]
    if len(others) > REASONS_MAX:
        shown.append(f"  and {len(others) - REASONS_MAX} more")
    return shown + _wrapped(f"next: {_next(health)}") if health.reasons else shown


def warnings(health: ClusterHealth) -> list[str]:
    """Lines for problems that do not make the deployment unhealthy yet."""
    found = [f"warning: cure is frozen {master.frozen}" for master in health.masters if master.frozen]
    unlisted = ", ".join(host_of(each.address) for each in health.servers if each.unlisted)
    if unlisted:
        nothing = "gets no leases and no new replicas; `ebla nodes allow-only` changes the list"
        found.append(f"warning: a host that is not on the allow list {nothing}: {unlisted}")
    low = [(each.address, each.low) for each in health.servers]
    low += [(each.address, each.low) for each in health.masters]
    low += [(each.address, each.low) for each in health.journals]
    found += dict.fromkeys(f"warning: {address}: {warning}" for address, warning in low if warning)
    return [line for warning in found[:REASONS_MAX] for line in _wrapped(warning)]


def quarantined(kept: Kept) -> list[str]:
    """A hint if the quarantine keeps much data, or old data."""
    now_s = datetime.now(timezone.utc).timestamp()
    age_s = 0.0 if kept.oldest_us is None else now_s - kept.oldest_us / 1e6
    if kept.bytes < QUARANTINE_BYTES and age_s < QUARANTINE_S:
        return []
    return _wrapped(
        f"note: quarantine keeps {size(kept.bytes)} of deleted replicas, the oldest for {age(age_s)}; "
        "`ebla tablet quarantine list` shows the data, `quarantine purge` frees the space"
    )


def servers(health: ClusterHealth) -> Table | str:
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


def tables(health: ClusterHealth, ui: Ui) -> list[Any]:
    """STATUS has the numbers of the tablets that are not healthy. Of many tables those that are not healthy come first."""
    known = health.tables
    shown = ui.some(known if len(ui.some(known)) == len(known) else sick_first(known))
    rows = (
        (
            table.name,
            ", ".join(f"{tablets:,} {word}" for word, tablets in table.sick()) or table.status,
            sum(table.tablets.values()),
            table.wanted,
            size(table.bytes),
        )
        for table in shown
    )
    listed = listing(("TABLE", "STATUS", "TABLETS>", "REPLICAS>", "SIZE>"), rows)
    return [listed, *ui.rest(known, "table", "`ebla table list PREFIX` lists some")]


def era(replications: Iterable[str]) -> str:
    """The header of the numbers of leaderships: a Raft tablet has terms, a PacificA tablet has ballots."""
    kinds = {"BALLOT" if each == PACIFICA else "TERM" for each in replications}
    return "/\n".join(sorted(kinds, reverse=True)) + ">"  # a narrow terminal has no room for both in a line


def sick_first(judged: Sequence[Judged]) -> list[Judged]:
    return sorted(judged, key=lambda each: each.status == "HEALTHY")


def tablets(health: Sequence[TabletHealth], with_table: bool = True) -> Table | str:
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
    headers = (
        "TABLET",
        "PART>",
        "STATUS",
        "OK>",
        "LEADER",
        era(t.replication for t in health),
        "INDEX>",
        "SIZE>",
    )
    return listing((("TABLE",) if with_table else ()) + headers, rows)


def replicas(tablet: TabletHealth) -> Table | str:
    """Each replica by its own report; with digests fewer log positions, and FOLLOWS only if replicas disagree about the leader,
    so that the table fits."""
    addresses = {replica.uuid: host_of(replica.address) for replica in tablet.replicas}
    digested = any(replica.digest for replica in tablet.replicas)
    values: tuple[str, ...] = (
        ("APPLIED>", "ROWS>", "DIGEST") if digested else ("APPLIED>", "FLUSHED>", "LAG>")
    )
    columnar = not digested and any(replica.tiers is not None for replica in tablet.replicas)
    values += ("TIERS>", "RUNS>", "TO MERGE>") if columnar else ()
    agreed = {replica.leader for replica in tablet.replicas if replica.status == "HEALTHY"} == {tablet.leader}
    rows = []
    for replica in tablet.replicas:
        follows = "-" if replica.leader is None else addresses.get(replica.leader, short(replica.leader))
        follows = "" if agreed else follows
        row: list[Any] = [
            f"  {host_of(replica.address)}",
            replica.status,
            _role(replica, tablet.replication),
            follows,
        ]
        positions = _digest(replica) if digested else _positions(replica)
        positions += _runs(replica) if columnar else []
        rows.append([*row, number(replica.term), *positions, _remark(replica)])
    headers = ("  HOST", "STATUS", "ROLE", "FOLLOWS", era([tablet.replication]), *values, "REMARK")
    return listing(headers, rows)


def _role(replica: ReplicaHealth, replication: str) -> str:
    """A voter's own report (leader, follower or candidate; primary, secondary or inactive), or the kind of another member."""
    if replica.member in (None, VOTER):
        return replica.role or "-"
    return member_word(replica.member, replication)


def _remark(replica: ReplicaHealth) -> str:
    """The facts that only its leader or the master knows of a replica."""
    remarks = [f"{replica.health} to its leader"] if replica.health in OUT_OF_ORDER else []
    if replica.replace:
        remarks.append("to be replaced")
    return ", ".join([*remarks, *filter(None, [_marks(replica)])])


def _marks(marked: ServerHealth | ReplicaHealth) -> str:
    """The operators' marks on a server."""
    marks = [
        (marked.draining, "draining"),
        (marked.maintained, "in maintenance"),
        (marked.suspended and not marked.unlisted, "suspended"),
        (marked.unlisted, "not allowed"),
    ]
    return ", ".join(word for on, word in marks if on)


def _positions(replica: ReplicaHealth) -> list[str]:
    positions = (replica.applied_index, replica.flushed_index, replica.lag)
    return [number(position) for position in positions]


def _runs(replica: ReplicaHealth) -> list[str]:
    return [number(replica.tiers), number(replica.runs), size(replica.debt_bytes)]


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
    return [tablet_title(judged), *reasons, *forced, *forced_records(judged.forced), replicas(judged)]


def forced_records(records: Iterable[Forced]) -> list[str]:
    """The catalog's record of each configuration that an operator forced on a PacificA tablet."""
    found = []
    for each in records:
        at = datetime.fromtimestamp(each.at_us / 1e6, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        gone = ", ".join(host_of(peer.address) for peer in each.given_up) or "no other member"
        record = (
            f"forced in ballot {each.ballot} at {at} UTC by {each.by}: {host_of(each.survivor.address)} became the primary with its "
            f"entries up to {each.last_index:,} (committed as far as known: {each.committed:,}); {gone} given up"
        )
        found += wrap(record, LINE_MAX, initial_indent="  ", subsequent_indent="    ")
    return found


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
    title = f"{tablet.status}  {tablet.table} tablet {short(tablet.tablet)} (part {tablet.bucket})"
    if tablet.health_class not in (FULLY_HEALTHY, tablet.status.lower()):
        title += f": {tablet.health_class}"
    line = status(tablet.status)
    text = "\n".join(wrap(title, LINE_MAX, subsequent_indent="  "))
    line.append(text[len(tablet.status) :], style="bold default")
    return line


def silent_servers(silent: dict[str, str]) -> list[str]:
    return [f"  {host_of(address)} does not answer: {brief(why)}" for address, why in silent.items()]


def nodes(
    servers: Iterable[ServerHealth], listed_servers: dict[str, ServerStatus], states: dict[str, ServerState]
) -> Table | str:
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


def stores(stores: Iterable[StoreHealth]) -> Table | str:
    """Ledger stores by their own reports."""
    rows = [
        (
            host_of(each.address),
            each.status,
            each.ledgers,
            size(each.bytes),
            size(each.free_bytes),
            "; ".join(filter(None, ["being decommissioned" if each.leaving else "", _silence(each)])),
        )
        for each in stores
    ]
    return listing(["LEDGER STORE", "STATUS", "LEDGERS>", "SIZE>", "FREE>", "REMARK"], rows)


def _silence(store: StoreHealth) -> str:
    return brief(store.error) if store.status in ("UNREACHABLE", "SILENT") and store.error else ""


def leases(servers: Iterable[Leased]) -> Table | str:
    """The leases of the servers with PacificA replicas, and the members of PacificA tablets that they are, as the master sees
    both."""
    rows = [
        (
            host_of(each.address),
            each.lease or "-",
            each.number or "-",
            age(each.beacon_age_s),
            each.primaries,
            each.secondaries,
            each.learners,
        )
        for each in servers
    ]
    return listing(["HOST", "LEASE", "NUMBER>", "BEACON>", "PRIMARIES>", "SECONDARIES>", "LEARNERS>"], rows)
