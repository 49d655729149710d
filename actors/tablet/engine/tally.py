"""Counters of a tablet server since its start, for its figures (actors/tablet/measures.py): by
batch and by sync, never by row."""

from __future__ import annotations

from ebla.actors.figures import Latencies
from ebla.actors.tablet.engine.core import CANDIDATE, LEADER

SHARED_LOG, PRIVATE_LOG, CONSENSUS, DATA = "shared-log", "private-log", "consensus", "data"
ENVIRONMENTS = (SHARED_LOG, PRIVATE_LOG, CONSENSUS, DATA)
DISK_FULL = "disk_full"
LIMITS = ("memtable_bytes", "unapplied_bytes_max", "results_per_client_max", DISK_FULL)


class Tally:
    def __init__(self) -> None:
        self.admitted = 0  # writes
        self.refused = dict.fromkeys(LIMITS, 0)  # writes, by the limit that they met
        self.rows_applied = 0
        self.candidacies = 0
        self.leaderships = 0
        self.flushes = 0
        self.syncs = {environment: Latencies() for environment in ENVIRONMENTS}

    def became(self, role: str) -> None:
        """Count a replica's change of role."""
        self.candidacies += role == CANDIDATE
        self.leaderships += role == LEADER
