"""The executors of a Spark session. Few imports: Spark's workers import it, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
