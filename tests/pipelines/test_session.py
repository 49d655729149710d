"""The nodes that Spark may use, and refusals before Spark starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from ebla.actors.errors import Unavailable
from ebla.pipelines import raydp_app, session
from ebla.placement.deploy.slots import Host, Survey
from ebla.placement.extras import MissingPackage
from ebla.storage.errors import InvalidArgument

LASTING = Survey(tuple(Host(f"host-{n}", f"id{n}", f"10.0.0.{n}") for n in (1, 2, 3)))
MIXED = Survey((*LASTING.hosts, Host("id4", "id4", "10.0.0.4", lasting=False)))


def test_by_default_spark_uses_every_node() -> None:
    assert session._allowed(LASTING, [], []) is None


def test_nodes_are_chosen_by_their_labels() -> None:
    assert session._allowed(LASTING, ["host-2"], []) == {"ebla.slot": "in(host-2)"}
    assert session._allowed(LASTING, [], ["host-2"]) == {"ebla.slot": "in(host-1,host-3)"}
    assert session._allowed(LASTING, ["host-1", "host-2"], ["host-2"]) == {"ebla.slot": "in(host-1)"}


def test_nodes_without_a_label_are_chosen_by_their_id() -> None:
    assert session._allowed(MIXED, [], ["host-1"]) == {"ray.io/node-id": "in(id2,id3,id4)"}


def test_a_wanted_slot_must_exist_and_an_avoided_one_need_not() -> None:
    assert session._allowed(LASTING, [], ["gone"]) == {"ebla.slot": "in(host-1,host-2,host-3)"}
    with pytest.raises(InvalidArgument, match="no alive node has the slot 'gone'; the slots are host-1"):
        session._allowed(LASTING, ["gone"], [])


def test_spark_needs_a_node() -> None:
    with pytest.raises(InvalidArgument, match="no node is left for Spark"):
        session._allowed(LASTING, ["host-1"], ["host-1"])


def test_nothing_is_started_without_a_ray_cluster() -> None:
    with pytest.raises(Unavailable, match="not connected to a Ray cluster"), session.spark():
        pass


@pytest.mark.parametrize("kind", ["driver", "executor"])
def test_every_jvm_opens_the_packages_that_arrow_needs(kind: str) -> None:
    for quick in (True, False):
        options = raydp_app.java_options(quick, Path("/tmp/own"))
        assert "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED" in options[f"spark.{kind}.extraJavaOptions"]
        assert (
            "--add-opens=java.base/java.nio=ALL-UNNAMED"
            in options["spark.ray.raydp_app_master.extraJavaOptions"]
        )
    assert (
        "TieredStopAtLevel"
        not in raydp_app.java_options(False, Path("/tmp/own"))["spark.executor.extraJavaOptions"]
    )


def test_nodes_without_the_packages_of_spark_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    retrieved: list[object] = []

    def get(answer: object, timeout: float) -> object:
        retrieved.append(answer)
        return answer

    monkeypatch.setattr(session.ray, "get", get)
    session._require_packages({"a" * 28: cast(Any, None)}, {})
    with pytest.raises(
        MissingPackage, match=r'bbbbbbbb cannot run Spark.*pyspark.*"ebla\[spark\]"'
    ) as caught:
        session._require_packages(cast(Any, {"a" * 28: None, "b" * 28: "pyspark"}), cast(Any, {"b": "error"}))
    assert (caught.value.extra, caught.value.module) == ("spark", "pyspark")
    assert retrieved[-1] == "error"
