"""The roles' figures where Ray's own Prometheus endpoint shows them, on a deployment with two masters and a journal."""

from __future__ import annotations

import os
import re
import urllib.request

import pyarrow as pa
import pytest
import ray

import ebla
from ebla.figure_docs import definitions
from ebla.placement import launch
from ebla.placement.config import configure
from ebla.placement.local.cluster import LocalCluster
from tests.cluster.conftest import THREE_HOSTS, eventually

pytestmark = pytest.mark.cluster

NAME = "measured"
JOURNALS = ("journal/0", "journal/1", "journal/2")
ROWS = 50
SAMPLE = re.compile(r"^(ray_ebla_\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
TAG = re.compile(r'(\w+)="([^"]*)"')

Series = tuple[str, tuple[tuple[str, str], ...]]


@pytest.fixture(scope="module")
def measured(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> LocalCluster:
    data = str(tmp_path_factory.mktemp("data"))
    settings = {"name": NAME, "data_dir": data, "slots": THREE_HOSTS, "masters": 2, "journals": 3}
    launch.up(configure(settings))
    return cluster


def scrape() -> dict[Series, float]:
    """What every node shows of this deployment, with ebla's own tags only."""
    found: dict[Series, float] = {}
    for node in (each for each in ray.nodes() if each["Alive"]):
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        for name, tags, value in SAMPLE.findall(text):
            own = {key: each for key, each in TAG.findall(tags) if key in OWN}
            if own.get("deployment") == NAME:
                found[name, tuple(sorted(own.items()))] = float(value)
    return found


OWN = ("deployment", "role", "host", "node", "journal", "state", "limit", "environment")


def series(name: str, **tags: str) -> Series:
    return name, tuple(sorted({"deployment": NAME, **tags}.items()))


def total(found: dict[Series, float], name: str, **tags: str) -> float:
    wanted = {"deployment": NAME, **tags}.items()
    return sum(value for (each, own), value in found.items() if each == name and wanted <= dict(own).items())


def told_by_a_majority(found: dict[Series, float]) -> bool:
    """One journal node may have been left out until the next segment."""
    taken = [total(found, "ray_ebla_journal_edits_total", role=node, journal="catalog") for node in JOURNALS]
    acked = [total(found, "ray_ebla_writer_acked_txid", node=node) for node in JOURNALS]
    return all(sum(value > 0 for value in each) > len(JOURNALS) // 2 for each in (taken, acked))


def test_every_figure_is_scraped_from_ray_with_its_tags(measured: LocalCluster) -> None:
    assert os.environ.get("RAY_AUTH_MODE", "disabled") == "disabled"
    db = ebla.connect(NAME)
    table = db.create_table(
        "rows", schema=pa.schema([("k", pa.int64()), ("v", pa.string())]), primary_key=["k"]
    )
    table.upsert([{"k": k, "v": "x"} for k in range(ROWS)])

    memtables = [
        series("ray_ebla_tablet_memtable_bytes", role=f"tablet-server/{host}", host=host)
        for host in THREE_HOSTS
    ]

    def settled() -> dict[Series, float] | None:
        """Each role exports at moments of its own, and a figure at another than the next."""
        found = scrape()
        whole = (
            total(found, "ray_ebla_tablet_rows_applied_total") >= 3 * ROWS,
            total(found, "ray_ebla_master_tables") >= 1,
            total(found, "ray_ebla_master_active") == 1,
            total(found, "ray_ebla_role_running") == 2 + len(JOURNALS) + len(THREE_HOSTS),
            all(found.get(memtable, 0) > 0 for memtable in memtables),
            told_by_a_majority(found),
        )
        return found if all(whole) and not missing(found) else None

    found = eventually(settled, f"every figure is scraped; missing: {missing(scrape())}", within_s=120.0)
    active = next(
        dict(own) for (name, own), value in found.items() if (name, value) == ("ray_ebla_master_active", 1)
    )
    where = {"role": active["role"], "host": active["host"]}
    for node in JOURNALS:
        assert series("ray_ebla_writer_acked_txid", node=node, **where) in found
    names = {name for name, _ in found}
    assert {"ray_ebla_" + name for name in RARE} & names == set()


# Counters that Ray shows when they have grown, and nothing here makes them grow.
RARE = ("journal_synced_segments_total", "master_leader_conflicts_total", "tablet_writes_refused_total")
MAY_BE = (
    "master_repairs_total",
    "tablet_copied_bytes_total",
    "tablet_copies_done_total",
    "tablet_copies_failed_total",
    "tablet_copy_sent_bytes_total",
    "journal_served_edits_total",
    "tablet_flushes_total",
    "tablet_scrubs_total",
    "tablet_candidacies_total",
)


def missing(found: dict[Series, float]) -> list[str]:
    names = {name for name, _ in found}
    rare = {"ray_ebla_" + name for name in RARE + MAY_BE}
    return sorted({each.exported for each in definitions()} - names - rare)
