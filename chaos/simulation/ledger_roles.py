"""The roles of logs in simulation, with small limits: ledger stores, the replication worker beside each of them, and auditors."""

from __future__ import annotations

from collections.abc import Callable

from ebla.actors.ledger.auditor.auditor import Auditor
from ebla.actors.ledger.auditor.options import AuditorOptions
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.store.options import LedgerStoreOptions
from ebla.actors.ledger.store.store import LedgerStore
from ebla.actors.ledger.worker.options import WorkerOptions
from ebla.actors.ledger.worker.worker import ReplicationWorker
from ebla.actors.world import Role, World

ROLES = {"store": "ledger-store", "worker": "replication-worker", "auditor": "auditor"}
CALLS = LedgerOptions(timeout_s=1.5)  # of workers and auditors


def make_store(world: World, masters: tuple[str, ...]) -> Role:
    return LedgerStore(
        world, LedgerStoreOptions(masters=masters, move_s=0.2, move_bytes=2_000, direct_bytes=20)
    )


def make_worker(world: World, masters: tuple[str, ...]) -> Role:
    """Of the store with the same number."""
    store = f"{ROLES['store']}/{world.address.rpartition('/')[2]}"
    options = WorkerOptions(
        masters=masters,
        store=store,
        batch_entries=10,
        grace_s=1.5,
        backoff_s=0.5,
        backoff_max_s=4.0,
        look_s=0.5,
        garbage_s=2.5,
    )
    return ReplicationWorker(world, options, CALLS)


def make_auditor(world: World, masters: tuple[str, ...]) -> Role:
    options = AuditorOptions(
        masters=masters,
        delay_s=1.0,
        settle_s=1.0,
        check_s=5.0,
        verify_percentage=100.0,
        look_s=1.0,
        count_s=0.5,
    )
    return Auditor(world, options, CALLS)


_MAKERS = {"store": make_store, "worker": make_worker, "auditor": make_auditor}


def maker_of(host: str, masters: tuple[str, ...]) -> Callable[[World], Role]:
    make = _MAKERS[host.partition("-")[0]]
    return lambda world: make(world, masters)
