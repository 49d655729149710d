"""What a Spark session tells of its executors. Light: Spark's workers import it, too."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def executors_alive(session: SparkSession) -> int:
    """How many executors the driver hears of. None for long means that the application is lost."""
    return int(session.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def hosts_of_executors(session: SparkSession) -> list[str]:
    """The addresses of the hosts on which executors run, once each, in order."""
    jvm: Any = session.sparkContext._jvm
    status = session.sparkContext._jsc.sc().getExecutorMemoryStatus()
    known = jvm.scala.collection.JavaConverters.mapAsJavaMap(status).keySet()
    driver = str(jvm.org.apache.spark.SparkEnv.get().blockManager().blockManagerId().hostPort())
    hosts = [str(place).rpartition(":")[0] for place in known if str(place) != driver]
    return sorted(dict.fromkeys(hosts))
