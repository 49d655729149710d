"""Compares the replicas of a table with each other, by digests as of one log index per tablet, while writes continue; and makes the
report of a whole comparison."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from ebla.actors.messages import Digest, TabletLocation
from ebla.health.digests import digests
from ebla.health.verdicts import Digests
from ebla.pipelines.outcomes import ReplicaDigest, Sample, TabletDigests, VerifyReport
from ebla.show.steps import Show
from ebla.table import Table
from ebla.wording import count


class Counts(msgspec.Struct, frozen=True):
    """The numbers of rows in a comparison of a table with its source."""

    source_rows: int
    table_rows: int
    missing: int
    extra: int
    different: int
    duplicates: int

    @property
    def same(self) -> bool:
        return not (self.missing or self.extra or self.different)


def reported(
    table: Table,
    source: str,
    counts: Counts,
    samples: tuple[Sample, ...],
    replicas: bool,
    progress: Show,
    began: float,
) -> VerifyReport:
    """The report of a comparison that `began` then. `replicas`: compare these with each other, too."""
    tablets: tuple[TabletDigests, ...] = ()
    if replicas:
        progress("comparing replicas")
        tablets = compare_replicas(table, progress)
    equal = all(tablet.equal for tablet in tablets) if replicas else None
    return VerifyReport(
        **msgspec.structs.asdict(counts),
        table=table.name,
        source=source,
        samples=samples,
        tablets=tablets,
        replicas_equal=equal,
        ok=counts.same and equal is not False,
        seconds=time.monotonic() - began,
    )


def compare_replicas(table: Table, progress: Show) -> tuple[TabletDigests, ...]:
    """Every replica's digest of every tablet, as of one index per tablet."""
    info = table.info()
    network = table._awaited._client.world.network

    def compared(done: int, total: int) -> None:
        progress(f"{done} of {count(total, 'tablet')} compared")

    found = table._run(digests(network, [info], compared))
    ordered: Sequence[TabletLocation] = sorted(info.tablets, key=lambda tablet: tablet.bucket)
    return tuple(_judged(location, found[location.tablet]) for location in ordered)


def _judged(location: TabletLocation, found: Digests) -> TabletDigests:
    if found.error is not None:
        return TabletDigests(location.tablet, location.bucket, 0, False, (), found.error.message)
    replicas = []
    for replica in location.replicas:
        answer = found.replicas[replica.uuid]
        if isinstance(answer, Digest):
            replicas.append(ReplicaDigest(replica.address, answer.rows, answer.digest))
        else:
            replicas.append(ReplicaDigest(replica.address, None, None, answer.message))
    alike = {(replica.rows, replica.digest) for replica in replicas}
    equal = len(alike) == 1 and all(replica.digest is not None for replica in replicas)
    return TabletDigests(location.tablet, location.bucket, found.index, equal, tuple(replicas))
