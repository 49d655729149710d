"""One Spark application on Ray: RayDP's parts, on chosen nodes, with an end in every case.

This module alone works around gaps of RayDP 1.6:

    place       Ray places its application master and executors anywhere; here they are on the nodes of the application's
                own placement group
    java        master, executors and driver need the same Java and the same opened packages
    namespace   its executors have fixed names, so that two applications in one namespace clash; here each has its own
    speed       the driver's JVM starts while the master starts, and both without the optimising compiler
    end         a JVM, an actor or a group that outlives the session is ended by name
    files       the JVMs' temporary files are in the application's own directory on every host, which is removed at the end

All functions block.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ebla.actors.errors import Unavailable
from ebla.placement import java
from ebla.placement.asking import first_line
from ebla.placement.deploy.slots import resource_of_its_own
from ebla.placement.extras import needs
from ebla.storage.errors import InvalidArgument

with needs("spark"):
    import raydp.context
    from pyspark import SparkConf, SparkContext
    from pyspark.accumulators import AccumulatorServer
    from pyspark.sql import SparkSession
    from raydp.spark.ray_cluster import SparkCluster
    from raydp.spark.ray_cluster_master import RAYDP_SPARK_MASTER_SUFFIX, RayDPSparkMaster

VERSIONS = {"raydp": "1.6.", "pyspark": "3.5."}
NAMESPACE = "spark.ebla.namespace"
DIRECTORY = "spark.ebla.directory"
START_S_MAX = 120.0
STOP_S_MAX = 20.0
UNPACKED = "/libcore_worker_library_java.so"
MASTER_CPU = 0.01  # a bundle must request a resource

# ray.data.from_spark and Arrow in the JVM need these, in all three kinds of JVM.
OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.math",
    "java.text",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)
OPENS = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED] + [
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-Dio.netty.tryReflectionSetAccessible=true",
]
# A JVM that lives for minutes uses the first compiler only: it needs half of the CPU time to start.
QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]

LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


class SparkMaster(RayDPSparkMaster.__ray_actor_class__):  # type: ignore[misc]
    """RayDP's actor beside the application master, with this node's Java, and a namespace and directory of its own."""

    def start_up(self, popen_kwargs: dict[str, Any] | None = None) -> None:
        os.environ.update(java.environment())
        os.makedirs(self._configs[DIRECTORY], exist_ok=True)
        super().start_up(popen_kwargs)

    def _launch_gateway(self, class_path: str, popen_kwargs: dict[str, Any] | None = None) -> Any:
        """Start the JVM that owns the application master. Ray's Java connects to the first raylet at this node's address in the
        GCS: this node's, unless nodes share an address."""
        gateway = super()._launch_gateway(class_path, popen_kwargs)
        gateway.jvm.org.apache.spark.deploy.raydp.RayAppMaster.setProperties(self._generate_ray_configs())
        gateway.jvm.io.ray.api.Ray.init()
        remove_unpacked(gateway.proc.pid)
        return gateway

    def _generate_ray_configs(self) -> str:
        options = json.loads(super()._generate_ray_configs())
        options["ray.job.namespace"] = self._configs[NAMESPACE]
        return json.dumps(options)


class PlacedCluster(SparkCluster):  # type: ignore[misc]
    """RayDP's cluster with its master in the last bundle of `group`. The driver's JVM starts at the same time."""

    def __init__(self, group: PlacementGroup, configs: dict[str, str], *settings: Any) -> None:
        """`settings`: its name, the number of executors, and the cores and memory of each."""
        self._group = group
        super().__init__(*settings, False, configs)

    def _set_up_master(self, resources: Any, kwargs: Any) -> None:
        strategy = PlacementGroupSchedulingStrategy(self._group, self._group.bundle_count - 1)
        self._spark_master_handle = (
            ray.remote(SparkMaster)
            .options(
                name=self._app_name + RAYDP_SPARK_MASTER_SUFFIX,
                namespace=self._configs[NAMESPACE],
                num_cpus=0,
                scheduling_strategy=strategy,
            )
            .remote(self._configs)
        )
        handle: Any = self._spark_master_handle
        started = handle.start_up.remote()
        conf = SparkConf(loadDefaults=False).setAll(list(self._configs.items()))
        SparkContext._ensure_initialized(conf=conf)
        ray.get(started, timeout=START_S_MAX)


class Application:
    """A running application. `session` is Spark's; `stop` ends every part that was started."""

    def __init__(
        self,
        name: str,
        executors: int,
        cores: int,
        memory: str,
        group: PlacementGroup,
        directory: Path,
        configs: Mapping[str, str],
    ) -> None:
        self.session: SparkSession | None = None
        self._group = group
        self._settings = (name, executors, cores, memory)
        self._configs = dict(configs)
        self.directory = directory
        self._environment: dict[str, str | None] = {}
        self._cluster: PlacedCluster | None = None

    def launch(self) -> None:
        """Start the master and the driver's JVM, without executors. Raises Unavailable after START_S_MAX."""
        end_jvm()  # an earlier session's JVM has other options
        setattr(AccumulatorServer, "handle_error", _ended_quietly)  # noqa: B010 - its type calls it a method
        self.directory.mkdir(parents=True, exist_ok=True)
        logging = self.directory / "log4j2.properties"
        logging.write_text(LOGGING)
        self._configs.setdefault("spark.log4j.config.file.name", str(logging))
        self._configs[NAMESPACE] = self.directory.name
        self._configs[DIRECTORY] = str(self.directory)
        self._set_environment({**java.environment(), "PYSPARK_PYTHON": self._configs["spark.pyspark.python"]})
        with self._bounded():
            self._cluster = PlacedCluster(self._group, self._configs, *self._settings)

    def connect(self) -> SparkSession:
        """The session; its executors begin to start. Raises Unavailable after START_S_MAX."""
        assert self._cluster is not None, "launch comes first"
        with self._bounded(), _own_interrupts():
            self.session = self._cluster.get_spark_session()
        return self.session

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        with _deadline(START_S_MAX) as overdue:
            try:
                yield
            except Exception as error:
                late = f" within {START_S_MAX:.0f} s" if overdue.is_set() else ""
                raise Unavailable(
                    f"Spark did not start{late}: {first_line(error)}; the logs are Ray's, on the node of the actor "
                    f"{self._settings[0]}{RAYDP_SPARK_MASTER_SUFFIX}"
                ) from error

    def stop(self) -> None:
        """End the application. A step that fails is skipped: the next step ends the parts by force."""
        with _deadline(STOP_S_MAX):
            for step in (self._stop_session, self._stop_master, self._remove_group):
                with contextlib.suppress(Exception):
                    step()
        end_jvm()
        raydp.context._reset_pyspark_singletons()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._set_environment({})

    def _stop_session(self) -> None:
        """Stop the session in another thread: an interrupt may have left this thread's connection to the JVM in a call."""
        if self.session is not None:
            stopping = threading.Thread(target=_stopped, args=(self.session,), name="stop Spark", daemon=True)
            stopping.start()
            stopping.join(STOP_S_MAX / 2)

    def _stop_master(self) -> None:
        handle: Any = None if self._cluster is None else self._cluster._spark_master_handle
        if handle is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(handle.stop.remote(True), timeout=STOP_S_MAX / 2)  # it exits
            ray.kill(handle)

    def _remove_group(self) -> None:
        remove_placement_group(self._group)

    def _set_environment(self, values: Mapping[str, str]) -> None:
        """Set variables for the JVM that this process starts. A call without values restores the old ones."""
        for name, previous in self._environment.items():
            if previous is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = previous
        self._environment = {name: os.environ.get(name) for name in values}
        os.environ.update(values)


# -- the parts -----------------------------------------------------------------------------------------------


def check_versions() -> None:
    for package, version in VERSIONS.items():
        found = importlib.metadata.version(package)
        if not found.startswith(version):
            raise InvalidArgument(
                f"ebla works with {package} {version}x, not {found}; install the versions of its requirements"
            )


def check_free() -> None:
    """Refuse a second session in this process: Spark would use the first one, with its master and settings."""
    if SparkContext._active_spark_context is not None:
        raise InvalidArgument(
            "this process has a Spark session already, and Spark allows one; stop it first (spark.stop())"
        )


def directory_of_its_own() -> Path:
    """A new path; the directory is not created yet."""
    return Path(tempfile.gettempdir()) / f"ebla-spark-{secrets.token_hex(4)}"


def java_options(quick: bool, directory: Path) -> dict[str, str]:
    """The options of driver, executors and master, whose temporary files are in `directory`. Executors use the optimising
    compiler unless the work is short (`quick`)."""
    options = [*OPENS, f"-Djava.io.tmpdir={directory}"]
    opened, brief = " ".join(options), " ".join([*options, *QUICK])
    return {
        "spark.driver.extraJavaOptions": brief,
        "spark.executor.extraJavaOptions": brief if quick else opened,
        "spark.ray.raydp_app_master.extraJavaOptions": f"{brief} -Xmx256m",
    }


def places_of(group: PlacementGroup, executors: int) -> dict[str, str]:
    """Settings that place each executor in a bundle of the group."""
    return {
        "spark.ray.placement_group": group.id.hex(),
        "spark.ray.bundle_indexes": ",".join(map(str, range(executors))),
    }


def place_of_master(group: PlacementGroup, nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Settings that place the application master, a Java actor, on the node of the last bundle. RayDP gives it resources and no
    bundle, so it requests a little of a resource that no other of `nodes` (ray.nodes()) has. The bundle's own resource would
    end the raylet: Ray removes a bundle, and finds an actor in it that it does not know. Empty if the node has no resource of
    its own: Ray nodes that share an address."""
    node = placement_group_table(group)["bundles_to_node_id"][group.bundle_count - 1]
    name = resource_of_its_own(node, nodes)
    return {} if name is None else {f"spark.ray.raydp_spark_master.actor.resource.{name}": "0.001"}


def prepare(directory: str) -> bool:
    """Runs on a node: creates the application's directory, and returns whether the raylet can start Java workers. A raylet that
    cannot ends itself at the attempt."""
    os.makedirs(directory, exist_ok=True)
    with open(f"/proc/{os.environ['RAY_RAYLET_PID']}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    return any(word.startswith(b"--java_worker_command=") and len(word) > 23 for word in words)


def tidy(directory: str) -> None:
    """Runs on a node after the application's processes there have ended."""
    shutil.rmtree(directory, ignore_errors=True)


def remove_unpacked(pid: int) -> None:
    """Remove the library of 40 MB that Ray's Java driver has unpacked into a new directory: once loaded, the file is not
    needed."""
    with open(f"/proc/{pid}/maps") as maps:
        unpacked = {Path(line.split(maxsplit=5)[-1].strip()).parent for line in maps if UNPACKED in line}
    for directory in unpacked:
        if directory.name.isdigit():
            shutil.rmtree(directory, ignore_errors=True)


def end_jvm() -> None:
    """End the JVM that PySpark started for this process. The next session starts another."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()
        process.wait(STOP_S_MAX)


def _ended_quietly(server: AccumulatorServer, request: Any, client: Any) -> None:
    """Ignore that an ended JVM has closed its connection for counters: PySpark would print a traceback."""


def _stopped(session: SparkSession) -> None:
    with contextlib.suppress(Exception):  # its JVM may have ended
        session.stop()


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[threading.Event]:
    """Kill the driver's JVM after `seconds`, so that a hanging call into it fails. Yields the event of that."""
    overdue = threading.Event()

    def expire() -> None:
        overdue.set()
        process = getattr(SparkContext._gateway, "proc", None)
        if process is not None:
            process.kill()

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield overdue
    finally:
        timer.cancel()


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Restore this process's handler of Ctrl-C: PySpark's handler would fail after the end of the session."""
    mine = threading.current_thread() is threading.main_thread()
    previous = signal.getsignal(signal.SIGINT) if mine else None
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGINT, previous)
