"""Scenarios with PacificA tables: the same workloads and faults as of scenarios with Raft tables.

Left out are scenarios about elections and forced configurations, about masters and locks alone, and those whose clients wait for
less time than a lease and the grace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ebla.chaos.scenarios.scenario import Scenario

PREFIX = "pacifica-"

# Of these, every commit runs the first ones.
FIRST = ("registers", "churn", "elections", "leases", "masters", "everything", "disks", "full-disks")
OTHERS = (
    *(
        "calm",
        "tokens",
        "bank",
        "chains",
        "logs",
        "handovers",
        "drift",
        "restarts",
        "truncations",
        "reads",
        "five",
        "scans",
    ),
    *(
        "retries",
        "clocks",
        "refusals",
        "votes",
        "full-disks",
        "hung-data",
        "copies",
        "members",
        "alters",
        "recalls",
    ),
    *("restores", "crowds"),
)


def with_pacifica(scenarios: Iterable[Scenario]) -> Iterator[Scenario]:
    for each in scenarios:
        if each.name in (*FIRST, *OTHERS):
            yield replace(each, name=PREFIX + each.name, replication="pacifica")
