"""Judges ledger stores. A deployment without logs has none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ebla.health import verdicts as v
from ebla.wording import size

if TYPE_CHECKING:
    from ebla.actors.ledger.messages import StoreStatus


STORE_HUNG_S = 10.0  # a commit takes so long only if the disk hangs, as a flush of a tablet server does


def judge_stores(survey: v.Survey) -> tuple[v.StoreHealth, ...]:
    return tuple(
        _store(address, answer, address in survey.leaving, survey.registered)
        for address, answer in sorted(survey.stores.items())
    )


def _store(
    address: str, answer: StoreStatus | v.Unanswered, leaving: bool, registered: tuple[str, ...] | None
) -> v.StoreHealth:
    if isinstance(answer, v.Unanswered):
        status = v.STOPPED if leaving else v.UNREACHABLE
        return v.StoreHealth(address, status, answer.message, leaving=leaving)
    status, error = v.HEALTHY, None
    if answer.commit_waits_s > STORE_HUNG_S:
        status = v.DISK_HUNG
        error = "no answer from its disk: writers use other stores; examine it, or take the host away"
    elif registered is not None and answer.uuid not in registered:
        status = v.SILENT
        error = (
            "it answers, but it is not registered with the master: logs are written and repaired without it"
        )
    elif answer.read_only:
        status = v.READ_ONLY
        error = f"it takes no records, for {size(answer.free_bytes)} are free; free space there, and it takes them again by itself"
    return v.StoreHealth(
        address,
        status,
        error,
        answer.uuid,
        answer.ledgers,
        answer.bytes,
        answer.free_bytes,
        answer.read_only,
        leaving,
    )


def reasons_of_stores(stores: Iterable[v.StoreHealth]) -> list[str]:
    return [
        f"{store.address} is {store.status}: {store.error}"
        for store in stores
        if store.status not in (v.HEALTHY, v.STOPPED)
    ]
