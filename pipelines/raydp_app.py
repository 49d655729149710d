"""One Spark application on Ray: RayDP's parts, put together so that they sit where we say and surely end.

What RayDP 1.6 leaves open is closed here, and nowhere else:

    place       its application master and executors go wherever Ray likes; ours sit on the nodes of the application's own
                placement group
    java        master, executors and driver need the same Java and the same opened packages
    namespace   its executors have fixed names, so that two applications in one namespace clash; each has its own here
    speed       the driver's JVM starts while the master starts, and both without the optimising compiler
    end         a JVM, an actor or a group that outlives the session is ended by name
    files       what the JVMs leave in the directory for temporary files is in one of the application's own, on every host, and
                goes with it

Everything here blocks.
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
import raydp.context
from pyspark import SparkConf, SparkContext
from pyspark.accumulators import AccumulatorServer
from pyspark.sql import SparkSession
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from raydp.spark.ray_cluster import SparkCluster
from raydp.spark.ray_cluster_master import RAYDP_SPARK_MASTER_SUFFIX, RayDPSparkMaster

from ebla.actors.errors import Unavailable
from ebla.placement import java
from ebla.placement.deploy.slots import resource_of_its_own
from ebla.storage.errors import InvalidArgument

VERSIONS = {"raydp": "1.6.", "pyspark": "3.5."}
NAMESPACE = "spark.ebla.namespace"
DIRECTORY = "spark.ebla.directory"
START_S_MAX = 120.0
STOP_S_MAX = 20.0
UNPACKED = "/libcore_worker_library_java.so"
MASTER_CPU = 0.01  # a bundle must ask for something

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
# A JVM that lives for minutes is compiled by the quick compiler only: it starts with half of the CPU time.
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
    """The actor beside the application master: RayDP's, with this node's Java, and a namespace and directory of its own."""

    def start_up(self, popen_kwargs: dict[str, Any] | None = None) -> None:
        os.environ.update(java.environment())
        os.makedirs(self._configs[DIRECTORY], exist_ok=True)
        super().start_up(popen_kwargs)

    def _launch_gateway(self, class_path: str, popen_kwargs: dict[str, Any] | None = None) -> Any:
        """The JVM that owns the application master. Ray's Java joins the first raylet of this node's address that the GCS lists:
        this one, unless nodes share an address."""
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
    """RayDP's cluster with its master in the last bundle of `group`; the driver's JVM starts meanwhile."""

    def __init__(
        self,
        name: str,
        executors: int,
        cores: int,
        memory: str,
        group: PlacementGroup,
        configs: dict[str, str],
    ) -> None:
        self._group = group
        super().__init__(name, executors, cores, memory, False, configs)

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
    """A running application. `session` is Spark's; `stop` ends everything that was begun."""

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
        """The master and the driver's JVM, no executors yet. What is not up in START_S_MAX raises Unavailable."""
        end_jvm()  # one of an earlier session has its options
        setattr(AccumulatorServer, "handle_error", _ended_quietly)  # noqa: B010 - its type calls it a method
        self.directory.mkdir(parents=True, exist_ok=True)
        logging = self.directory / "log4j2.properties"
        logging.write_text(LOGGING)
        self._configs.setdefault("spark.log4j.config.file.name", str(logging))
        self._configs[NAMESPACE] = self.directory.name
        self._configs[DIRECTORY] = str(self.directory)
        self._set_environment({**java.environment(), "PYSPARK_PYTHON": self._configs["spark.pyspark.python"]})
        with self._bounded():
            self._cluster = PlacedCluster(*self._settings, self._group, self._configs)

    def connect(self) -> SparkSession:
        """The session, whose executors then start. Bounded in the same way."""
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
                    f"Spark did not start{late}: {_first_line(error)}; the logs are Ray's, on the node of the actor "
                    f"{self._settings[0]}{RAYDP_SPARK_MASTER_SUFFIX}"
                ) from error

    def stop(self) -> None:
        """Whatever fails on the way is passed over: the next step ends it more rudely."""
        with _deadline(STOP_S_MAX):
            for step in (self._stop_session, self._stop_master, self._remove_group):
                with contextlib.suppress(Exception):
                    step()
        end_jvm()
        raydp.context._reset_pyspark_singletons()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._set_environment({})

    def _stop_session(self) -> None:
        """In another thread: an interrupt may have left this one's connection to the JVM in the middle of a call."""
        if self.session is not None:
            stopping = threading.Thread(target=_stopped, args=(self.session,), name="stop Spark", daemon=True)
            stopping.start()
            stopping.join(STOP_S_MAX / 2)

    def _stop_master(self) -> None:
        handle: Any = None if self._cluster is None else self._cluster._spark_master_handle
        if handle is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(handle.stop.remote(True), timeout=STOP_S_MAX / 2)  # it ends by exiting
            ray.kill(handle)

    def _remove_group(self) -> None:
        remove_placement_group(self._group)

    def _set_environment(self, values: Mapping[str, str]) -> None:
        """For the JVM that this process starts; put back by an empty call."""
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
                f"ebla works with {package} {version}x, not {found}; install what its requirements name"
            )


def check_free() -> None:
    """One Spark per process: a session of somebody else's would be taken over, with its master and settings."""
    if SparkContext._active_spark_context is not None:
        raise InvalidArgument(
            "this process has a Spark session already, and Spark allows one; stop it first (spark.stop())"
        )


def directory_of_its_own() -> Path:
    """A path that no application has had; nothing is made yet."""
    return Path(tempfile.gettempdir()) / f"ebla-spark-{secrets.token_hex(4)}"


def java_options(quick: bool, directory: Path) -> dict[str, str]:
    """For driver, executors and master, which keep their temporary files in `directory`; the executors are compiled fully
    unless the work is short."""
    options = [*OPENS, f"-Djava.io.tmpdir={directory}"]
    opened, brief = " ".join(options), " ".join([*options, *QUICK])
    return {
        "spark.driver.extraJavaOptions": brief,
        "spark.executor.extraJavaOptions": brief if quick else opened,
        "spark.ray.raydp_app_master.extraJavaOptions": f"{brief} -Xmx256m",
    }


def places_of(group: PlacementGroup, executors: int) -> dict[str, str]:
    """Each executor in a bundle of the group. Without it they would go wherever Ray likes."""
    return {
        "spark.ray.placement_group": group.id.hex(),
        "spark.ray.bundle_indexes": ",".join(map(str, range(executors))),
    }


def place_of_master(group: PlacementGroup, nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The application master, a Java actor, on the node of the last bundle. RayDP gives it resources and no bundle, so it
    gets a crumb of one that no other of `nodes` (ray.nodes()) has. The bundle's own resource would do, and end the raylet:
    Ray takes a bundle back, and finds in it one that it does not know to be there. Empty if the node has nothing of its
    own: Ray nodes that share an address."""
    node = placement_group_table(group)["bundles_to_node_id"][group.bundle_count - 1]
    name = resource_of_its_own(node, nodes)
    return {} if name is None else {f"spark.ray.raydp_spark_master.actor.resource.{name}": "0.001"}


def prepare(directory: str) -> bool:
    """Runs on a node: makes the application's directory, and says whether the raylet can start Java workers. One that cannot
    ends itself when asked to."""
    os.makedirs(directory, exist_ok=True)
    with open(f"/proc/{os.environ['RAY_RAYLET_PID']}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    return any(word.startswith(b"--java_worker_command=") and len(word) > 23 for word in words)


def tidy(directory: str) -> None:
    """Runs on a node, when nothing of the application is left there."""
    shutil.rmtree(directory, ignore_errors=True)


def remove_unpacked(pid: int) -> None:
    """Ray's Java driver unpacks its library of 40 MB into a new directory, and leaves it there. Once it is loaded nobody needs the
    file."""
    with open(f"/proc/{pid}/maps") as maps:
        unpacked = {Path(line.split(maxsplit=5)[-1].strip()).parent for line in maps if UNPACKED in line}
    for directory in unpacked:
        if directory.name.isdigit():
            shutil.rmtree(directory, ignore_errors=True)


def end_jvm() -> None:
    """The JVM that PySpark started for this process; the next session starts another."""
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
    """A JVM that ended has closed its connection for counters; PySpark would print a traceback for that."""


def _stopped(session: SparkSession) -> None:
    with contextlib.suppress(Exception):  # its JVM may be gone, and then there is nothing left to stop
        session.stop()


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[threading.Event]:
    """After so long the driver's JVM is killed: a call into it that hangs then fails. Yields the event of it."""
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
    """PySpark takes Ctrl-C over for good, with a handler that fails once the session has ended. Ours stays."""
    mine = threading.current_thread() is threading.main_thread()
    previous = signal.getsignal(signal.SIGINT) if mine else None
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGINT, previous)


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
