"""Scenarios of logs: ledger stores, and the repair of ledgers."""

from __future__ import annotations

from ebla.actors.fault_points import LEDGER_POINTS, REPAIR_OF_LEDGERS_POINTS
from ebla.chaos.scenarios.scenario import Scenario, rates, small
from ebla.chaos.workloads.logs.events import Events
from ebla.chaos.workloads.logs.ledgers import Ledgers

# Ensemble, write and ack quorum: as many stores as copies, and more.
_QUORUMS = ((3, 3, 2), (3, 3, 2), (4, 3, 2), (4, 2, 2))
_EVENTS = small(hosts=1, clients=3, stores=5)
_REPAIRS = small(hosts=1, clients=2, masters=2, journals=3, stores=5, auditors=2)
_LEDGERS = small(hosts=1, clients=3, stores=6, auditors=2)
_AGES = small(hosts=1, clients=2, stores=3, auditors=2)

OF_LOGS = (
    Scenario(  # writers of one log take turns, on stores that fail
        "events",
        rates(
            "crash 3, crash_point 5, stop 1, pause 1.5, zombie 0.5, client_crash 2, isolate 1.5, cut 1.5, cut_one_way 1.5, "
            "lose 1, repeat 1, delay 1, slow_disk 1, full_disk 0.5, blackout 0.3, client_pause 1.5"
        ),
        lambda: [Events(quorums=_QUORUMS)],
        _EVENTS,
        duration_s=10.0,
        replicas=1,
        points=LEDGER_POINTS,
        victims=_EVENTS.store_hosts(),
    ),
    Scenario(  # stores are lost, for a while or for good, while auditors and replication workers fail, too
        "repairs",
        rates(
            "crash 3, crash_point 6, stop 1, pause 2, zombie 0.5, client_crash 2, isolate 2, cut_master 1.5, cut 1, "
            "cut_one_way 1, lose 0.5, repeat 0.5, delay 0.5, slow_disk 1, full_disk 0.7, lose_host 1, lose_disk 0.7, "
            "fail_sync 0.3, rot 0.5, client_pause 1"
        ),
        lambda: [Events(quorums=_QUORUMS, opens=0.7, trims=0.8)],
        _REPAIRS,
        duration_s=14.0,
        replicas=1,
        holds_s={"crash": (0.5, 7.0), "isolate": (0.5, 7.0), "cut_master": (3.0, 9.0), "pause": (0.5, 7.0)},
        pause_s=0.3,
        # Those of repairs are drawn twice as often as those that any writer passes.
        points=(*LEDGER_POINTS, *REPAIR_OF_LEDGERS_POINTS, *REPAIR_OF_LEDGERS_POINTS),
        victims=(
            *_REPAIRS.store_hosts(),
            *_REPAIRS.repair_hosts(),
            *_REPAIRS.master_hosts(),
            *_REPAIRS.journal_hosts(),
        ),
        destroyed=_REPAIRS.store_hosts(),
    ),
    Scenario(  # ledgers without a log, spread over more stores than they have copies, which any client ends and deletes
        "ledgers",
        rates(
            "crash 3, crash_point 6, stop 1, pause 2, zombie 0.5, client_crash 1.5, client_pause 2.5, isolate 2, cut_master 1, cut 1, "
            "cut_one_way 1, lose 0.5, repeat 0.7, delay 0.7, slow_disk 1, full_disk 0.7, blackout 0.2, lose_host 0.7, lose_disk 0.5, rot 0.5"
        ),
        lambda: [Ledgers()],
        _LEDGERS,
        duration_s=10.0,
        replicas=1,
        points=(*LEDGER_POINTS, *REPAIR_OF_LEDGERS_POINTS),
        victims=(*_LEDGERS.store_hosts(), *_LEDGERS.repair_hosts()),
        destroyed=_LEDGERS.store_hosts(),
    ),
    Scenario(  # records of a log grow old, while auditors that count their age fail, and wall clocks are wrong
        "ages",
        rates("crash 4, pause 3, isolate 2, cut 1, client_crash 1.5, lose 0.5, delay 0.5, clock_jump 4"),
        lambda: [Events(opens=1.5, retain_s=3.0)],
        _AGES,
        duration_s=12.0,
        replicas=1,
        victims=(*_AGES.store_hosts(), *_AGES.repair_hosts()),
    ),
)
