"""The list of all scenarios: the size of a deployment, its workloads, and its likely faults. docs/testing.md says how to add
one."""

from __future__ import annotations

from dataclasses import replace

from ebla.actors.fault_points import (
    ALTER_POINTS,
    GROUP_POINTS,
    GROWTH_POINTS,
    JOIN_POINTS,
    JOURNAL_POINTS,
    MASTER_POINTS,
    MEMBER_POINTS,
    NAMESPACE_POINTS,
    POINTS,
    REPAIR_POINTS,
    STEP_POINTS,
)
from ebla.chaos.scenarios.columns import with_columns
from ebla.chaos.scenarios.logs import OF_LOGS
from ebla.chaos.scenarios.pacifica import with_pacifica
from ebla.chaos.scenarios.scenario import (
    CLOCKS,
    DISKS,
    ELECTIONS,
    ENVELOPES,
    IDLE,
    NETWORK,
    PROCESSES,
    Scenario,
    rates,
    small,
)
from ebla.chaos.workloads.alters import Alters
from ebla.chaos.workloads.bank import Bank
from ebla.chaos.workloads.base import Workload
from ebla.chaos.workloads.chains import Chains
from ebla.chaos.workloads.churn import HAND_OVERS, TABLES, Churn
from ebla.chaos.workloads.inspections import Inspections
from ebla.chaos.workloads.levels import Levels
from ebla.chaos.workloads.locks import Locks
from ebla.chaos.workloads.moves import COPIES, Moves
from ebla.chaos.workloads.recalls import Recalls
from ebla.chaos.workloads.refused import Refused
from ebla.chaos.workloads.registers import Registers
from ebla.chaos.workloads.salvage import Salvage
from ebla.chaos.workloads.stamps import Stamps
from ebla.chaos.workloads.tokens import Tokens
from ebla.storage.errors import InvalidArgument

__all__ = ["SCENARIOS", "Scenario", "scenario"]


def _everything() -> list[Workload]:
    return [Registers(), Tokens(local=True), Bank(), Chains(), Stamps(), Churn()]


_MASTERS = small(masters=2, journals=3)
_GROWN = replace(_MASTERS, masters=1, grows=True, clients=4)
_LOCKS = small(hosts=1, clients=4, masters=2, journals=3)

# Two of five hosts are lost for good, so that tables of three replicas can heal.
_LOSSES = small(
    hosts=5,
    forced=(Salvage.name,),
    server={"follower_failed_s": 1.5, "copy_idle_s": 2.0},
    master={"rpc_backoff_max_s": 1.0, "unresponsive_s": 2.0},
)

_ALL = (
    Scenario("calm", {}, _everything, duration_s=1.0, pause_s=0.2),
    Scenario("registers", {**PROCESSES, **NETWORK, **CLOCKS, "slow_disk": 1.0}, lambda: [Registers()]),
    Scenario("tokens", {**PROCESSES, **NETWORK, "crash_midway": 4.0}, lambda: [Tokens(local=True)]),
    Scenario(
        "bank",
        {**PROCESSES, **NETWORK},
        lambda: [Bank(), Stamps()],
        small(server={"scan_read_rows": 5, "scan_block_bytes_max": 64, "memtable_bytes": 1500}),
        pause_s=0.15,
    ),
    Scenario("chains", {**PROCESSES, "slow_disk": 1.0, "full_disk": 1.0}, lambda: [Chains()]),
    Scenario(
        "logs",
        {**PROCESSES, "crash_midway": 4.0, "slow_disk": 1.0},
        lambda: [Chains(tablets=2), Registers(keys=2, tablets=6)],
        pause_s=0.15,
        points=(*POINTS, *STEP_POINTS),
    ),
    Scenario(
        "churn",
        {**PROCESSES, **NETWORK, "slow_disk": 4.0},
        lambda: [Churn(), Registers()],
        small(server={"scan_read_rows": 5, "scan_block_bytes_max": 300}),
        check_s=0.05,
    ),
    Scenario(
        "handovers",
        {"cut": 3.0, "lose": 3.0, "delay": 3.0, "isolate": 2.0},
        lambda: [Churn(HAND_OVERS), Registers(keys=2, tablets=6)],
        duration_s=6.0,
        check_s=0.02,
    ),
    Scenario(  # most groups are idle
        "quiet",
        IDLE,
        lambda: [Registers(keys=6, tablets=8), Churn(HAND_OVERS)],
        small(server={"quiesce_after_s": 0.25}),
        duration_s=10.0,
        holds_s={"pause": (0.5, 2.8)},
        pause_s=1.2,
        check_s=0.02,
    ),
    Scenario("elections", ELECTIONS, lambda: [Chains(tablets=2), Registers(keys=2, tablets=3)], pause_s=0.1),
    Scenario(
        "leases",
        {"pause": 10.0, "delay": 8.0, "cut_one_way": 6.0, "clock_rate": 2.0},
        lambda: [Registers(keys=2, tablets=8)],
        small(clients=4),
        duration_s=6.0,
        holds_s={"pause": (1.3, 2.8)},
        check_s=0.02,
    ),
    Scenario(
        "drift",
        {"clock_rate": 16.0, "split": 8.0, "isolate": 4.0},
        lambda: [Registers(keys=2, tablets=8)],
        small(clients=4),
        duration_s=6.0,
        holds_s={"clock_rate": (3.0, 6.0), "split": (1.2, 3.0), "isolate": (1.2, 3.0)},
        check_s=0.02,
    ),
    Scenario(
        "restarts",
        {"cut": 4.0, "crash": 24.0},
        lambda: [Registers(keys=2, tablets=12)],
        small(restart_s=(0.0, 0.03)),
        duration_s=6.0,
        holds_s={"cut": (2.0, 6.0), "crash": (0.02, 0.4)},
        pause_s=0.1,
        check_s=0.02,
    ),
    Scenario(
        "truncations",
        {"split": 12.0, "slow_disk": 16.0},
        lambda: [Chains(tablets=3, reads=0.0), Registers(keys=3, tablets=3)],
        small(clients=6),
        holds_s={"split": (1.2, 2.6), "slow_disk": (3.0, 8.0)},
        check_s=0.05,
    ),
    Scenario(
        "retries",
        {"blackout": 8.0, "crash": 2.0, "lose": 4.0, "repeat": 4.0, "delay": 4.0, "full_disk": 2.0},
        lambda: [Tokens()],
        small(clients=5, server={"memtable_bytes": 300}),
        holds_s={"blackout": (0.05, 0.5), "repeat": (3.0, 8.0), "delay": (3.0, 8.0)},  # the last two overlap
        pause_s=0.15,
    ),
    Scenario(  # answers expire after seconds, and each server has another setting
        "clocks",
        rates(
            "clock_jump 8, clock_rate 4, blackout 3, client_crash 6, crash 2, isolate 2, lose 2, repeat 4, "
            "delay 4"
        ),
        lambda: [Tokens(calls=2)],
        small(clients=4, uneven={"results_retention_s": (4.0, 5.0, 6.0)}),
        duration_s=10.0,
        holds_s={"blackout": (0.05, 0.5), "repeat": (3.0, 8.0), "delay": (3.0, 8.0)},
        pause_s=0.04,
        deadlines_s=(1.0,),
    ),
    Scenario(  # refused requests arrive again, late
        "refusals",
        rates("repeat 8, delay 8, lose 2, cut_clients 1, crash 1.5, isolate 1, cut_master 1"),
        lambda: [Refused()],
        small(
            clients=3,
            server={"memtable_bytes": 4 << 20, "shared_log_bytes": 16 << 20},  # for rows that are large
        ),
        duration_s=10.0,
        holds_s={"repeat": (3.0, 8.0), "delay": (3.0, 8.0)},
        pause_s=0.1,
    ),
    Scenario(
        "reads",
        {"crash": 6.0, "slow_disks": 6.0, "isolate": 2.0, "cut": 2.0},
        lambda: [Registers(keys=6, tablets=6)],
    ),
    Scenario(
        "votes",
        {"crash_point": 12.0, "crash": 3.0, "isolate": 6.0, "split": 6.0, "slow_disk": 4.0},
        lambda: [Registers(keys=2, tablets=12)],
        small(restart_s=(0.0, 0.03)),
        holds_s={"crash_point": (0.02, 0.4)},  # back while the other candidate still requests votes
        points=("tablet.hard_state.before_commit", "tablet.hard_state.after_commit"),
    ),
    Scenario(
        "five",
        ELECTIONS,
        lambda: [Chains(tablets=4), Registers(keys=2)],
        small(hosts=5, server={"append_bytes_max": 1}),
        replicas=5,
        duration_s=6.0,
        pause_s=0.1,
    ),
    Scenario(
        "scans",
        rates(
            "grow_map 8, crash 3, pause 2, isolate 2, cut_master 2, cut_clients 2, lose 1, repeat 4, "
            "slow_disk 2, full_disk 1"
        ),
        lambda: [Bank(clients=10, slow=0.6), Registers(keys=6, tablets=3, many=0.6, scanned=0.3), Stamps()],
        small(
            server={
                "scan_read_rows": 2,
                "scan_block_bytes_max": 24,
                "scanner_ttl_s": 0.5,
                "memtable_bytes": 1500,
            }
        ),
        pause_s=0.15,
    ),
    Scenario(  # a single disk hangs: leaders there hand over, and no client waits for long
        "hangs",
        {"hang_disk": 2.0},
        lambda: [Registers(keys=6, tablets=3), Chains(tablets=3)],
        duration_s=16.0,
        holds_s={"hang_disk": (8.0, 16.0)},
        pause_s=0.4,
        victims=("host-1",),
        deadlines_s=(7.0,),
        excused=(),
    ),
    Scenario("disks", DISKS, lambda: [Registers(), Chains()], pause_s=0.2),
    Scenario(  # servers start on full disks, with unfinished deletions and copies
        "full-disks",
        {"full_disk": 12.0, "crash": 8.0, "crash_point": 12.0, "isolate": 1.0},
        lambda: [Moves(), Churn(TABLES), Registers(keys=2, tablets=2)],
        small(
            hosts=5,
            clients=3,
            server={"follower_failed_s": 1.5, "log_retained_entries_max": 25, "copy_idle_s": 2.0},
            master={"rpc_backoff_max_s": 1.0},
        ),
        holds_s={"full_disk": (1.0, 4.0), "crash": (0.2, 1.5), "crash_point": (0.2, 1.5)},
        pause_s=0.2,
        points=REPAIR_POINTS,
    ),
    Scenario(  # some of a server's data disks hang for longer than the server waits
        "hung-data",
        {"hang_data": 6.0, "crash": 1.0, "isolate": 1.0},
        lambda: [Chains(tablets=6), Registers(keys=2, tablets=4)],
        small(clients=5, server={"memtable_bytes": 3_000, "disk_hung_s": 0.5}),
        holds_s={"hang_data": (3.0, 8.0), "crash": (0.2, 2.0), "isolate": (0.2, 2.0)},
        pause_s=0.1,
    ),
    Scenario(
        "everything",
        {**PROCESSES, **NETWORK, **CLOCKS, **DISKS, "cut_master": 1.0, "cut_clients": 1.0, **ENVELOPES},
        _everything,
        duration_s=5.0,
        pause_s=0.3,
    ),
    Scenario(
        "copies",
        {"old_copy": 5.0, "crash": 4.0, "isolate": 3.0, "split": 2.0},
        lambda: [Chains(tablets=3), Registers(keys=2, tablets=6)],
        small(server={"seqno_s": 0.5}),
        hold_s=(0.5, 4.0),
        pause_s=0.15,
    ),
    Scenario(
        "masters",
        rates(
            "crash 4, crash_point 4, stop 1, pause 3, zombie 1, blackout 0.3, isolate 5, cut 3, "
            "cut_one_way 3, lose 0.5, repeat 0.5, delay 0.5, slow_disk 2, full_disk 0.5, fail_sync 0.4, "
            "lose_disk 0.8, clock_rate 3"
        ),
        lambda: [Churn(TABLES), Registers(keys=2), Inspections()],
        _MASTERS,
        duration_s=12.0,
        holds_s={"isolate": (1.0, 6.0), "pause": (1.0, 6.0), "crash": (0.5, 4.0)},
        pause_s=0.3,
        check_s=0.02,
        points=(*MASTER_POINTS, *GROUP_POINTS, *JOURNAL_POINTS),
        victims=(*_MASTERS.master_hosts(), *_MASTERS.journal_hosts()),
    ),
    Scenario(
        "locks",
        rates(
            "crash 5, crash_point 8, stop 1, pause 4, zombie 1, client_crash 4, isolate 3, cut 2, "
            "cut_one_way 2, lose 1, repeat 1, delay 1, slow_disk 1, clock_rate 3"
        ),
        lambda: [Locks()],
        _LOCKS,
        duration_s=12.0,
        replicas=1,
        holds_s={"isolate": (0.5, 4.0), "pause": (0.5, 4.0), "crash": (0.2, 3.0)},
        pause_s=0.15,
        check_s=0.05,
        points=(*NAMESPACE_POINTS, *GROUP_POINTS),
        victims=(*_LOCKS.master_hosts(), *_LOCKS.journal_hosts()),
    ),
    Scenario(  # tables heal while their members change: more hosts than replicas, and short logs
        "members",
        rates(
            "crash 5, crash_point 8, crash_midway 2, stop 1, pause 2, isolate 4, split 2, cut 2, lose 1, "
            "repeat 1, delay 1, slow_disk 1, full_disk 1, lose_disk 1, fail_sync 0.5, rot 1, grow_map 1"
        ),
        lambda: [Moves(), Registers(keys=2, tablets=4), Chains(tablets=2), Tokens(), Churn(TABLES)],
        small(
            hosts=5,
            clients=2,
            server={
                "follower_failed_s": 1.5,
                "log_retained_entries_max": 25,
                "copy_idle_s": 2.0,
                "copy_bytes_per_s": 20_000,  # slow, so that elections happen during copies
            },
            master={"rpc_backoff_max_s": 1.0},
        ),
        duration_s=8.0,
        holds_s={"crash": (0.3, 5.0), "isolate": (0.5, 5.0)},
        pause_s=0.25,
        points=(*REPAIR_POINTS, *REPAIR_POINTS, *STEP_POINTS, *STEP_POINTS, *MEMBER_POINTS, *POINTS),
    ),
    Scenario(
        "levels",
        rates(
            "crash 6, crash_point 6, isolate 4, split 1, pause 2, cut 2, lose 1, repeat 1, delay 1, "
            "slow_disk 1, lose_disk 1"
        ),
        lambda: [Levels(), Registers(keys=2, tablets=4), Tokens()],
        small(
            hosts=5,
            clients=2,
            server={"follower_failed_s": 1.5},
            master={"rpc_backoff_max_s": 1.0, "unresponsive_s": 2.0},
        ),
        duration_s=12.0,
        holds_s={"crash": (0.5, 6.0), "isolate": (0.5, 6.0)},
        pause_s=0.25,
        points=(*MEMBER_POINTS, *REPAIR_POINTS, *POINTS),
    ),
    Scenario(
        "mending",
        {"isolate": 8.0, "crash": 8.0, "split": 6.0, "pause": 2.0, "slow_disk": 1.0, "crash_point": 2.0},
        lambda: [Moves(COPIES), Chains(tablets=4), Registers(keys=3, tablets=3), Tokens()],
        small(
            server={
                "memtable_bytes": 2_000,
                "copy_bytes_per_s": 5_000,
                "copies_max": 8,
            }
        ),
        holds_s={"isolate": (0.5, 3.0), "crash": (0.2, 4.0)},
        pause_s=0.1,
        points=REPAIR_POINTS,
    ),
    Scenario(
        "alters",
        {**PROCESSES, **NETWORK, "crash": 3.0, "crash_point": 10.0, "slow_disk": 4.0, "full_disk": 0.5},
        lambda: [Alters(), Churn(TABLES)],
        small(clients=3),
        duration_s=10.0,
        pause_s=0.1,
        points=(*ALTER_POINTS, *ALTER_POINTS, *POINTS),
    ),
    Scenario(  # requests arrive so late that their table was dropped and recalled meanwhile
        "recalls",
        {"delay": 10.0, "lose": 1.0, "crash": 0.5, "isolate": 0.5, "cut_clients": 1.0},
        lambda: [Recalls()],
        small(clients=6),
        hold_s=(1.0, 8.0),
        amounts={"delay": (0.5, 4.0)},
    ),
    Scenario(
        "restores",
        {"old_catalog": 8.0, "crash": 2.0, "isolate": 1.0, "pause": 1.0, "slow_disk": 2.0},
        lambda: [Churn(TABLES), Alters(), Chains(tablets=2)],
        small(clients=3, master={"assignment_timeout_s": 1.0}),
        duration_s=14.0,
        holds_s={"old_catalog": (0.3, 3.0)},
        pause_s=0.2,
    ),
    *OF_LOGS,
    Scenario(  # several requests of each connection under way, coalesced rows, and slow flushes
        "crowds",
        {"lose": 4.0, "repeat": 3.0, "slow_disks": 10.0, "crash": 2.0, "crash_point": 8.0, "isolate": 1.0},
        lambda: [Registers(keys=3, calls=5), Tokens(calls=2), Stamps(rows=6, calls=3), Locks(several=30)],
        small(server={"scan_read_rows": 5, "memtable_bytes": 3000}),
        duration_s=5.0,
        holds_s={
            "lose": (0.5, 3.0),
            "slow_disks": (1.0, 4.0),
            "repeat": (1.0, 4.0),
            "crash_point": (0.05, 1.0),
        },
        pause_s=0.3,
        points=("master.change_nodes.after_edit", "tablet.flush.before_commit", "tablet.flush.after_commit"),
    ),
    Scenario(
        "disasters",
        rates(
            "away 3, lose_hosts 1.5, lose_data 0.7, crash 1.5, crash_point 2, isolate 4, cut 3, lose 0.5, "
            "delay 0.5, slow_disk 2"
        ),
        lambda: [Salvage(), Registers(keys=2, tablets=2)],
        _LOSSES,
        duration_s=12.0,
        holds_s={"away": (3.0, 10.0), "crash": (0.3, 4.0), "isolate": (1.0, 5.0), "cut": (1.0, 5.0)},
        pause_s=0.12,
        points=(*MEMBER_POINTS, *REPAIR_POINTS),
    ),
    Scenario(  # the same, with masters that fail over
        "takeovers",
        rates("crash 2, pause 1, isolate 1.5, cut 1, cut_one_way 1, lose 0.5, lose_disk 1, clock_jump 2"),
        lambda: [Alters(), Churn(TABLES), Inspections()],
        _MASTERS,
        duration_s=15.0,
        holds_s={"isolate": (1.0, 3.0), "pause": (1.0, 3.0), "crash": (0.5, 3.0), "cut": (1.0, 3.0)},
        pause_s=0.1,
        victims=(*_MASTERS.master_hosts(), *_MASTERS.journal_hosts()),
    ),
    Scenario(  # the journal of a single master grows to three nodes
        "growing",
        rates(
            "crash 3, crash_point 8, crash_midway 2, stop 0.5, pause 1, zombie 1, blackout 0.3, isolate 2, "
            "cut 1, cut_one_way 1, lose 0.5, repeat 0.5, delay 0.5, slow_disk 2, full_disk 0.5, "
            "fail_sync 1, lose_disk 1"
        ),
        lambda: [Churn(TABLES), Alters()],
        _GROWN,
        duration_s=12.0,
        replicas=1,  # it is about the catalog
        holds_s={"isolate": (0.3, 3.0), "pause": (0.3, 3.0), "crash": (0.2, 2.0), "crash_point": (0.05, 2.0)},
        pause_s=0.15,
        points=(*GROWTH_POINTS, *GROWTH_POINTS, *JOIN_POINTS, *JOIN_POINTS, *JOURNAL_POINTS, *GROUP_POINTS),
        victims=(*_GROWN.journal_hosts(), *_GROWN.master_hosts()),
    ),
)

SCENARIOS = {each.name: each for each in (*_ALL, *with_pacifica(_ALL), *with_columns(_ALL))}


def scenario(name: str) -> Scenario:
    if name not in SCENARIOS:
        raise InvalidArgument(f"there is no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
