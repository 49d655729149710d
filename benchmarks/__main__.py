"""`make bench`: every figure, on a local 4-node cluster, into benchmarks/RESULTS.md.

    python -m benchmarks [--rows 1000000] [--only bulk,latency,...] [--output FILE]

Progress goes to standard error, the table to standard output and to the file. With `--only` there is no file, unless `--output`
names one. Every process that it starts is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import ray

import ebla
from benchmarks import beacons, commands, copies, etcd, loads, logs, masters, pacifica, rereplication, scale
from benchmarks.figures import Figure, markdown, median
from benchmarks.floor import Echo, Floor
from benchmarks.reassignment import reassignment
from benchmarks.takeover import takeover
from ebla.placement.extras import MissingPackage, needs

OUTPUT = Path(__file__).parent / "RESULTS.md"
ROW_BYTES = loads.KEY_BYTES + loads.VALUE_BYTES
CHUNK_BYTES = 1_200_000
WIDTH = 256
SAMPLES = 400
COPY_BYTES = 1_000_000_000


class Bench:
    def __init__(self, db: Any, cluster: Path, rows: int) -> None:
        self.db = db
        self.cluster = cluster
        self.rows = rows
        self.floor = Floor()
        self.figures: list[Figure] = []

    @cached_property
    def peer(self) -> dict[str, float]:
        if not etcd.available():
            return {}
        say("etcd: three nodes, the same loads")
        with etcd.cluster() as endpoints:
            puts, gets = etcd.latency(endpoints[0], SAMPLES)
            return {
                "bulk": asyncio.run(etcd.bulk(endpoints[0], min(self.rows, 200_000))),
                "upserts": asyncio.run(etcd.concurrent(endpoints[0], etcd.PUT, 20_000, WIDTH)),
                "gets": asyncio.run(etcd.concurrent(endpoints[0], etcd.RANGE, 20_000, WIDTH)),
                "upsert_ms": puts.quantile_ms(0.5),
                "get_ms": gets.quantile_ms(0.5),
            }

    def add(self, name: str, value: float, unit: str, **rest: Any) -> None:
        self.take((Figure(name, value, unit, **rest),))

    def take(self, figures: Iterable[Figure]) -> None:
        self.figures.extend(map(told, figures))

    def disk(self) -> None:
        append_ms, commit_ms = self.floor.disk()
        self.add("append 4 KiB + fdatasync, p50", append_ms, "ms")
        self.add("LMDB synced commit, p50", commit_ms, "ms")

    def table(self, name: str, storage: str = "rows") -> Any:
        partition = ebla.hash("k", buckets=8)
        return self.db.create_table(
            name,
            schema=loads.SCHEMA,
            primary_key=["k"],
            partition_by=partition,
            replicas=3,
            storage=storage,
        )

    def bulk(self) -> None:
        rows = loads.rows_of(self.rows)
        floor = asyncio.run(self.floor.bulk(self.rows, ROW_BYTES, CHUNK_BYTES))
        peer = self.peer.get("bulk")
        for storage, label, targets in (
            ("rows", "", (150_000, 300_000, 2_000_000)),
            ("columns", "columns: ", (400_000, 3_000_000, 30_000_000)),
        ):
            table = self.table("bulk", storage)
            with loads.Memory() as memory:
                rate = loads.bulk_upsert(table, rows)
            name = f"{label}bulk upsert of {self.rows:,} rows, one client"
            self.add(name, rate, "rows/s", target=targets[0], floor=floor, floor_name="3 sinks", peer=peer)
            name = f"{label}tablet server under that load, RSS"
            self.add(name, memory.bytes_max / 2**20, "MB", target=400, better="lower")
            self.add(f"{label}scan through the server", loads.scan(table), "rows/s", target=targets[1])
            self.add(f"{label}node-local snapshot scan", loads.local_scan(table), "rows/s", target=targets[2])
            self.db.drop_table("bulk")

    def latency(self) -> None:
        table = self.table("single")
        self._paired(
            "single-row upsert", table, loads.upsert_one, self.floor.chain, "chain", 1.6, "upsert_ms"
        )
        self._paired("get", table, loads.get_one, self.floor.call, "bare call", 1.3, "get_ms")

    def _paired(
        self,
        name: str,
        table: Any,
        ours: Callable[[Any, int], None],
        floor: Callable[[], None],
        floor_name: str,
        target: float,
        peer: str,
    ) -> None:
        loads.paired(100, lambda number: ours(table, number), floor)
        mine, bare = loads.paired(SAMPLES, lambda number: ours(table, number), floor)
        self.add(
            f"{name}, p50",
            mine.quantile_ms(0.5),
            "ms",
            floor=bare.quantile_ms(0.5),
            floor_name=floor_name,
            target=target,
            better="lower",
            of_floor=True,
            peer=self.peer.get(peer),
        )
        bare_ms = bare.quantile_ms(0.99)
        self.add(f"{name}, p99", mine.quantile_ms(0.99), "ms", floor=bare_ms, floor_name=floor_name)

    def concurrency(self) -> None:
        self.table("many")
        for operation, method, what in (("upsert", "chain", "upserts"), ("get", "echo", "gets")):
            floor = asyncio.run(self.floor.concurrent(method, 4096, WIDTH))
            rate = asyncio.run(loads.concurrent("many", operation, 20_480, WIDTH))
            name = f"{WIDTH} concurrent single-row {what}, one process"
            peer = self.peer.get(what)
            self.add(name, rate, "1/s", target=10_000, floor=floor, floor_name="bare actors", peer=peer)

    def commands(self) -> None:
        bare, found = commands.medians()
        for name, cost in found.items():
            for what, taken_s, bare_s in (
                ("", cost.time_s, bare.time_s),
                (" of CPU", cost.cpu_s, bare.cpu_s),
            ):
                self.add(
                    f"`ebla {name}`, the whole process, median of {commands.RUNS}",
                    taken_s,
                    f"s{what}",
                    floor=bare_s,
                    floor_name="connection + one call",
                    target=1.3,
                    better="lower",
                    of_floor=True,
                )

        fed = commands.feeds()
        name = f"`ebla feed` of {commands.FEED_ROWS:,} rows of CSV, the whole process, median of {commands.FEEDS}"
        times_s = [cost.time_s for cost in fed]
        note = f"{listed(times_s)}; of CPU: {', '.join(f'{cost.cpu_s:.2f}' for cost in fed)}"
        self.add(name, median(times_s), "s", target=5.0, better="lower", note=note)

    def failover(self) -> None:
        middle, gaps = loads.unavailability(self.db, 10)
        name = "write unavailability after SIGKILL of a leader, median of 10"
        self.add(name, middle, "s", target=2.0, better="lower", note=listed(gaps))

    def feed(self) -> None:
        (cold, warm), seconds = loads.feed_flights(self.db)
        note = f"the second feed of one Spark application; the first made {cold:,.0f} rows/s, Spark came up in {seconds:.0f} s"
        self.add("feed of 336,776 flights through Spark", warm, "rows/s", target=30_000, note=note)

    def journal(self) -> None:
        echoes = [Echo.remote([]) for _ in masters.NODES]
        found = masters.journal(echoes, str(self.floor.directory / "journal"))
        for echo in echoes:
            ray.kill(echo)
        for name, q in (("p50", 0.5), ("p99", 0.99)):
            floor = found.floor.quantile_ms(q)
            self.add(
                f"one edit of the journal, three nodes, {name}",
                found.one.quantile_ms(q),
                "ms",
                floor=floor,
                floor_name="2 of 3 bare calls + a commit",
            )
        name = f"edits of the journal, {masters.WRITERS} writers in one process"
        self.add(name, found.edits_per_s, "1/s")
        self.add("synced batches of the journal under that load", found.batches_per_s, "1/s")

    def catalog(self) -> None:
        tables, edits = masters.creations(loads.SCHEMA)
        self.add("tables created by 64 clients, three replicas", tables, "1/s")
        self.add("edits of the catalog under that load", edits, "1/s")
        times = [masters.wide_table(self.db, loads.SCHEMA) for _ in range(3)]
        name = "a new table of 64 tablets can be written to, median of 3"
        self.add(name, median(times), "s", target=3.0, better="lower", note=listed(times))

    def takeover(self) -> None:
        gaps, pause_s = masters.failovers(self.db, loads.SCHEMA)
        name = f"SIGKILL of the active master to the next table, median of {len(gaps)}"
        self.add(name, median(gaps), "s", target=3.0, better="lower", note=listed(gaps))
        name = "longest pause of a client that reads and writes meanwhile"
        self.add(name, pause_s, "s", note="one upsert and one get after the other, all the time")
        large = takeover()
        note = (
            "disk and network are simulated, so LMDB's reading is not in it; another process, with nothing else in it, took "
            f"{large.load_s:.2f} s to decode and check the same {large.checkpoint_mb:.0f} MB"
        )
        name = f"start from a checkpoint of {large.tablets:,} tablets, until it serves"
        self.add(name, large.serve_s, "s", target=5.0, better="lower", note=note)
        self.add("memory of that catalog", large.catalog_mb, "MB")

    def beacons(self) -> None:
        found = beacons.costs()
        among = f"{found.servers} servers with {found.tablets:,} tablets, {found.masters} masters"
        for name, cost in (("beacons", found.beacons), ("heartbeats without news", found.heartbeats)):
            note = (
                f"{cost.calls_per_s:,.0f} calls and {cost.bytes_per_s:,.0f} bytes per second to all masters; the active one "
                "in a simulated network, without the cost of actor calls"
            )
            what = f"CPU of the active master for {name} of {among}"
            self.add(what, cost.master_ms_per_s, "ms/s", better="lower", note=note)

    def copies(self) -> None:
        self._copy("columns: ", copies.copy(self.db, COPY_BYTES, "columns"))
        found = copies.copy(self.db, COPY_BYTES, "rows")
        self._copy("", found)
        undisturbed = found.before.quantile_ms(0.99)
        self.add(
            "single-row upsert of another table during it, p99",
            found.during.quantile_ms(0.99),
            "ms",
            floor=undisturbed,
            floor_name="undisturbed",
            target=3.0,
            better="lower",
            of_floor=True,
            note=f"p50 {found.during.quantile_ms(0.5):.2f} ms, undisturbed {found.before.quantile_ms(0.5):.2f} ms; "
            f"the copy continued at {found.data_bytes / 1e6 / found.busy_s:.0f} MB/s",
        )
        for end, grown in (("source", found.source_bytes), ("target", found.target_bytes)):
            name = f"memory that the copy took at its {end}"
            self.add(name, grown / 2**20, "MB", target=64, better="lower")

    def _copy(self, label: str, found: copies.Copy) -> None:
        mb = found.data_bytes / 1e6
        self.add(
            f"{label}copy of a tablet of {mb:,.0f} MB",
            mb / found.copy_s,
            "MB/s",
            floor=mb / found.floor_s,
            floor_name="LMDB's compacting copy + fsync",
            target=0.5,
            of_floor=True,
            note=f"{COPY_BYTES / 1e6:,.0f} MB of rows in {found.copy_s:.1f} s; bare actor calls carry as much in "
            f"{COPY_BYTES / found.carried_bytes_per_s:.1f} s, with nothing read, checked or written at either end. "
            f"{found.cpu_s:.2f} s of CPU at both ends, other work at the same time included",
        )

    def pacifica(self) -> None:
        """Every figure has Raft's as its floor, from the same run."""
        raft, mine = pacifica.single(self.db)
        name = "PacificA: single-row upsert, p50"
        self._beside_raft(name, raft.quantile_ms(0.5), mine.quantile_ms(0.5), "ms", of_floor=1.15)
        raft, mine = pacifica.concurrent(self.db, 20_480, WIDTH)
        name = f"PacificA: time of one of {WIDTH} concurrent upserts, one process"
        self._beside_raft(name, WIDTH / raft * 1000, WIDTH / mine * 1000, "ms", of_floor=1.15)
        rows = min(self.rows, 400_000)
        raft, mine = pacifica.bulk(self.db, rows)
        name = f"PacificA: bulk upsert of {rows:,} rows, one client"
        self._beside_raft(name, rows / raft, rows / mine, "s", of_floor=1.05)
        found = reassignment()
        name = f"PacificA: {found.tablets:,} tablets of a dead server have new primaries, after the decision"
        note = (
            f"master and three journal nodes in one process, on LMDB; {found.edits} edit, durable after {found.durable_s:.3f} s; "
            "the servers, which follow the orders, are scripted"
        )
        self.add(name, found.ordered_s, "s", target=2.0, better="lower", note=note)

    def kills(self) -> None:
        raft, mine = pacifica.killed_processes(self.db)
        name = f"PacificA: SIGKILL of a primary's process to the next write, median of {len(mine.led)}"
        self._beside_raft(name, median(raft.led), median(mine.led), "s", target=3.0, note=listed(mine.led))
        name = f"PacificA: longest pause of {len(mine.followed)} writers, SIGKILL of a secondary's process"
        self._beside_raft(name, max(raft.followed), max(mine.followed), "s", target=2.0)

    def losses(self) -> None:
        raft, mine = pacifica.lost_nodes(self.db, self.cluster)
        name = f"PacificA: longest pause of {len(mine.led)} writers, the primary's node is lost"
        self._beside_raft(name, max(raft.led), max(mine.led), "s", target=7.0, note=listed(mine.led))

    def _beside_raft(
        self,
        name: str,
        raft: float,
        mine: float,
        unit: str,
        *,
        of_floor: float | None = None,
        target: float | None = None,
        note: str = "",
    ) -> None:
        """`of_floor`: the target as a multiple of Raft's figure."""
        self.add(
            name,
            mine,
            unit,
            floor=raft,
            floor_name="Raft",
            target=of_floor or target,
            of_floor=of_floor is not None,
            better="lower",
            note=note,
        )


STEPS: dict[str, Callable[[Bench], None]] = {
    "disk": Bench.disk,
    "commands": Bench.commands,
    "latency": Bench.latency,
    "concurrency": Bench.concurrency,
    "bulk": Bench.bulk,
    "failover": Bench.failover,
    "journal": Bench.journal,
    "catalog": Bench.catalog,
    "takeover": Bench.takeover,
    "beacons": Bench.beacons,
    "copies": Bench.copies,
    "feed": Bench.feed,
    "logs": lambda bench: bench.take(logs.figures(bench.db)),
    "pacifica": Bench.pacifica,
    "kills": Bench.kills,
    "losses": Bench.losses,
}


def repair() -> Iterator[Figure]:
    found = copies.repair()
    note = (
        f"{found.tablets} of {copies.REPAIR_TABLETS} tablets of {copies.REPAIR_TABLET_BYTES // 10**6} MB had a replica there; "
        f"the first copy began after {found.noticed_s:.1f} s, since a silent peer is given 10 s"
    )
    yield Figure(
        "a node is lost for good, until every tablet has three voters", found.whole_s, "s", note=note
    )


ALONE: dict[str, Callable[[], Iterable[Figure]]] = {  # each on a deployment of its own
    "repair": repair,
    "ledgers": rereplication.figures,
    "scale": scale.figures,
}


def shared(steps: Sequence[str], rows: int) -> list[Figure]:
    """The figures of these steps, on one deployment."""
    say("starting a local cluster of 4 nodes, with two masters and three journal nodes")
    with (
        tempfile.TemporaryDirectory(prefix="ebla-bench-") as directory,
        ebla.local(hosts=pacifica.HOSTS, data_dir=directory, masters=2, journals=3) as db,
    ):
        bench = Bench(db, Path(directory) / "cluster", rows)
        try:
            for name in steps:
                STEPS[name](bench)
        finally:
            bench.floor.close()
    return bench.figures


def listed(seconds: list[float]) -> str:
    return "all, in seconds: " + ", ".join(f"{each:.2f}" for each in seconds)


def told(figure: Figure) -> Figure:
    ratio = f" ({figure.ratio:.2f} of the floor)" if figure.ratio else ""
    say(f"{figure.name}: {figure.value:,.3g} {figure.unit}{ratio}")
    return figure


def say(text: str) -> None:
    print(f"{time.perf_counter() - STARTED:6.1f} s  {text}", file=sys.stderr, flush=True)


STARTED = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    known = [*STEPS, *ALONE]
    parser.add_argument("--only", help=f"some of {', '.join(known)}")
    parser.add_argument("--output", type=Path, help=f"default: {OUTPUT.name}, or none with --only")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else known
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"there is no step {unknown[0]!r}; choose from {', '.join(known)}")
    if "feed" in chosen:
        try:
            with needs("bench"):
                pass
        except MissingPackage as error:
            parser.error(f"feed: {error}")
    steps = [name for name in STEPS if name in chosen]
    figures = shared(steps, options.rows) if steps else []
    for name in ALONE:
        if name in chosen:
            figures.extend(map(told, ALONE[name]()))
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    machine = f"Measured {today} on {os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, one local cluster of 4 Ray nodes with two masters and three journal nodes."
    text = markdown(figures, machine)
    print(text)
    output = options.output or (None if options.only else OUTPUT)
    if output is not None:
        output.write_text(text)


if __name__ == "__main__":
    main()
