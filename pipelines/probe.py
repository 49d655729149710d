"""Measures how long a tablet accepts no writes: one writer per tablet of a side table, one small row after the other.

The side table has as many tablets as the loaded table, on the same servers. Each tablet has one row, which is written again
every PERIOD_S. The tablet was unavailable for the longest time between two acknowledgements.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import pyarrow as pa

import ebla
from ebla.pipelines.report import Outage
from ebla.storage.errors import EblaError
from ebla.table import Database

NAME = "probe"
PERIOD_S = 0.02
STALLED_S = 0.5
WRITE_S_MAX = 30.0
END_S_MAX = WRITE_S_MAX + 5.0


class Probe:
    def __init__(self, db: Database, tablets: int, replicas: int, replication: str) -> None:
        self.table = db.create_table(
            NAME,
            schema=pa.schema([pa.field("tablet", pa.int32(), nullable=False), ("n", pa.int64())]),
            primary_key=["tablet"],
            partition_by=ebla.range("tablet", splits=list(range(1, tablets))),
            replicas=replicas,
            replication=replication,
        )
        self.acknowledged: list[list[float]] = [[] for _ in range(tablets)]
        self.failed = 0
        self._ending = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Writers run until the block ends."""
        writers = [
            threading.Thread(target=self._write, args=(tablet,), name=f"probe {tablet}", daemon=True)
            for tablet in range(len(self.acknowledged))
        ]
        self._ending.clear()
        for writer in writers:
            writer.start()
        try:
            yield
        finally:
            self._ending.set()
            deadline = time.monotonic() + END_S_MAX
            for writer in writers:
                writer.join(max(0.0, deadline - time.monotonic()))

    def led_by(self, slot: str) -> tuple[int, ...]:
        """The tablets that the server at `slot` leads, as the master sees it."""
        return tuple(
            tablet.bucket for tablet in self.table.info().tablets if tablet.leader == f"tablet-server/{slot}"
        )

    def await_resumed(self) -> None:
        """Wait until every tablet has acknowledged a write that was sent after this call."""
        since = time.monotonic()
        while not all(times and times[-1] > since for times in self.acknowledged):
            if time.monotonic() > since + WRITE_S_MAX:
                return
            time.sleep(PERIOD_S)

    def outage(self, led: Sequence[int], since: float) -> Outage:
        """The pauses of the tablets in `led`, and of the others, from `since` on."""
        pauses = [longest_pause(times, since) for times in self.acknowledged]
        return Outage(
            tablets=len(pauses),
            led=len(led),
            led_s=max((pauses[tablet] for tablet in led), default=0.0),
            others_s=max((pause for tablet, pause in enumerate(pauses) if tablet not in led), default=0.0),
            stalled=sum(pause > STALLED_S for pause in pauses),
            writes=sum(map(len, self.acknowledged)),
            failed=self.failed,
        )

    def _write(self, tablet: int) -> None:
        number = 0
        while not self._ending.is_set():
            number += 1
            try:
                self.table.upsert({"tablet": tablet, "n": number}, deadline_s=WRITE_S_MAX)
            except EblaError:
                self.failed += 1
                continue
            now = time.monotonic()
            self.acknowledged[tablet].append(now)
            self._ending.wait(PERIOD_S - now % PERIOD_S)  # writers write at the same times, and share calls


def longest_pause(times: Sequence[float], since: float) -> float:
    """The longest time between two acknowledgements of which the second came after `since`."""
    return max((later - earlier for earlier, later in pairwise(times) if later > since), default=0.0)
