"""The executors of a Spark session: where they run, and the process that forks their Python workers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ebla.placement.extras import needs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def executors_alive(session: SparkSession) -> int:
    """The number of executors that the driver knows. If it stays 0, the application is lost."""
    return int(session.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def hosts_of_executors(session: SparkSession) -> list[str]:
    """The sorted addresses of the hosts on which executors run."""
    jvm: Any = session.sparkContext._jvm
    status = session.sparkContext._jsc.sc().getExecutorMemoryStatus()
    known = jvm.scala.collection.JavaConverters.mapAsJavaMap(status).keySet()
    driver = str(jvm.org.apache.spark.SparkEnv.get().blockManager().blockManagerId().hostPort())
    hosts = [str(place).rpartition(":")[0] for place in known if str(place) != driver]
    return sorted(dict.fromkeys(hosts))


# Without these each worker would need one to two seconds of CPU before it reads its first row. None of them starts a thread of
# Python or connects to anything, so a process that has imported them may be forked.
BEFORE_FORKS = (
    "pyspark.sql.pandas.serializers",
    "ebla.pipelines.feed",
    "ebla.pipelines.read",
    "ebla.pipelines.logs",
)


def fork_workers() -> None:
    """The program of each executor of Spark (`spark.python.daemon.module`): PySpark's daemon, with the imports of the tasks."""
    with needs("spark"):
        from pyspark import daemon
    for module in BEFORE_FORKS:
        importlib.import_module(module)
    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    fork_workers()
