"""Judges the digests of a tablet's replicas: whether all have the same rows as of one log index. Await-free."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ebla.health import verdicts as v
from ebla.wording import count

PENDING = ("TimedOut", "AlreadyInProgress")  # the time was over before a digest was made


def reasons_of_digests(digests: Iterable[v.Digests]) -> list[str]:
    """For the tablets that were not compared, because the time was over."""
    late = sum(any(_is_late(answer) for answer in (each.error, *each.replicas.values())) for each in digests)
    return [f"{count(late, 'tablet')} not compared in time; use a longer `--timeout`"] if late else []


def _is_late(answer: object) -> bool:
    return isinstance(answer, v.Unanswered) and answer.kind in PENDING


def with_digest(replica: v.ReplicaHealth, digests: v.Digests) -> v.ReplicaHealth:
    answer = digests.replicas.get(replica.uuid)
    if answer is None:
        return replica
    if isinstance(answer, v.Unanswered):
        return msgspec.structs.replace(replica, error=replica.error or f"no digest: {answer.message}")
    return msgspec.structs.replace(replica, rows=answer.rows, digest=answer.digest)


def different_rows(replicas: tuple[v.ReplicaHealth, ...], digests: v.Digests | None) -> list[tuple[str, str]]:
    if digests is None:
        return []
    if _is_late(digests.error):
        return []
    if digests.error is not None:
        return [(v.UNWRITABLE, f"no checksum could be made: {digests.error.message}")]
    found: list[tuple[str, str]] = []
    for replica in replicas:
        is_late = _is_late(digests.replicas.get(replica.uuid))
        if replica.digest is None and replica.status == v.HEALTHY and not is_late:
            found.append(
                (v.UNDER_REPLICATED, f"replica at {replica.address}: {replica.error or 'no digest'}")
            )
    different = {replica.digest for replica in replicas if replica.digest is not None}
    if len(different) > 1:
        listed = ", ".join(
            f"{r.address} {r.digest} ({r.rows:,} rows)" for r in replicas if r.digest is not None
        )
        found.append((v.CHECKSUM_MISMATCH, f"different rows as of index {digests.index}: {listed}"))
    return found
