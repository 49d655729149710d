"""The choice of the Ray cluster that a process connects to."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import msgspec
import psutil
import pytest
import ray
import ray._private.services
from ray.exceptions import AuthenticationError

from ebla.actors.errors import NoCluster, Unavailable
from ebla.placement import connection, ray_private
from ebla.placement.local import failure, processes
from ebla.placement.local.cluster import STATE, LocalState, NodeState
from ebla.placement.local.node import DEFAULTS, NodeSettings, choose_auth
from ebla.placement.ray_private import CHECK_ALIVE
from ebla.storage.errors import InvalidArgument


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


class Web(BaseHTTPRequestHandler):
    """As Ray's dashboard: it listens, and is no head."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_listener_that_is_no_head_is_refused_before_ray_tries_it_for_minutes() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Web) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        try:
            with pytest.raises(NoCluster, match=r"not answer as the head .* 6379 \(8265 is the dashboard's"):
                connection.connect_ray(f"127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
    assert not ray.is_initialized()


def chosen(directory: Path, address: str | None = None) -> str:
    return connection.choose(address, directory)[1]


def failed(directory: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), failure.remembered(directory, 4):
        raise error


def started(directory: Path, *, runs: bool) -> None:
    """Write the state file of a local cluster of two nodes."""
    own = processes.record(psutil.Process())
    raylet = msgspec.structs.replace(own, name="raylet", pid=own.pid if runs else 1 << 30)
    node = NodeState(1, 1, str(directory), str(directory / "log"), raylet, (raylet,))
    settings = NodeSettings(4, 1 << 28, False, choose_auth("disabled", directory, {}), {})
    state = LocalState("c", settings, str(directory), {1: node}, 2, "127.0.0.1:6379", complete=True)
    (directory / STATE).write_bytes(msgspec.json.encode(state))


def test_without_a_local_cluster_ray_finds_one(tmp_path: Path) -> None:
    assert chosen(tmp_path) == "auto"


def test_after_a_failed_up_local_no_other_cluster_is_used(tmp_path: Path) -> None:
    """The failed cluster has no state file, and Ray would find another cluster of the machine."""
    failed(tmp_path, RuntimeError("node 2 ended while starting:\nTraceback"))
    with pytest.raises(Unavailable) as refused:
        chosen(tmp_path)
    assert "of 4 nodes did not come up (node 2 ended while starting)" in str(refused.value)
    assert "`ebla up --local 4` tries again" in str(refused.value) and "Traceback" not in str(refused.value)
    failed(tmp_path, KeyboardInterrupt())
    with pytest.raises(Unavailable, match=r"\(it was interrupted\)"):
        chosen(tmp_path)


def test_a_named_cluster_is_used_even_after_a_failed_up_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed(tmp_path, RuntimeError("no"))
    assert chosen(tmp_path, "auto") == "auto"
    assert chosen(tmp_path, "10.0.0.1:6379") == "10.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert chosen(tmp_path) == "10.0.0.2:6379"


@pytest.mark.parametrize(("address", "named"), [("local", None), (None, "local"), ("auto", "local")])
def test_the_address_local_is_refused_since_ray_would_start_a_cluster_in_this_process(
    address: str | None, named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        monkeypatch.setenv("RAY_ADDRESS", named)
    with pytest.raises(InvalidArgument, match=r"use ebla\.local\(\) or `ebla up --local 4`"):
        chosen(tmp_path, address)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("nosuch", "has no port"),
        ("10.0.0.5", "has no port"),
        ("host:", "is not HOST:PORT"),
        (":6379", "is not HOST:PORT"),
        ("host:port", "is not HOST:PORT"),
        ("host:65536", "is not HOST:PORT"),
    ],
)
def test_an_address_without_a_port_is_refused_with_the_form_that_is_wanted(
    address: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidArgument, match=f"{address}' {problem}: .* as HOST:PORT"):
        chosen(tmp_path, address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InvalidArgument, match=problem):
        chosen(tmp_path)


def test_a_successful_up_or_a_down_forgets_the_failed_up(tmp_path: Path) -> None:
    failed(tmp_path, RuntimeError("no"))
    with failure.remembered(tmp_path, 4):
        pass
    assert chosen(tmp_path) == "auto"
    failed(tmp_path, RuntimeError("no"))
    failure.forget(tmp_path)
    assert chosen(tmp_path) == "auto"


def test_a_local_cluster_that_ended_unexpectedly_is_an_error(tmp_path: Path) -> None:
    """A reboot, for example, ends it."""
    started(tmp_path, runs=False)
    with pytest.raises(Unavailable, match="of 2 nodes has ended without `ebla down`: `ebla up --local 2`"):
        chosen(tmp_path)
    assert chosen(tmp_path, "10.0.0.1:6379") == "10.0.0.1:6379"


def test_a_running_local_cluster_is_used_despite_another_failed_up(tmp_path: Path) -> None:
    started(tmp_path, runs=True)
    failed(tmp_path, RuntimeError("a local cluster of 2 nodes runs already, not of 4"))
    assert chosen(tmp_path) == "127.0.0.1:6379"
    assert failure.absence(tmp_path) is None


@pytest.fixture(params=[True, False], ids=["token", "open"])
def gcs(request: pytest.FixtureRequest) -> Iterator[tuple[str, bool]]:
    """The address of a server that answers as Ray's GCS does, and whether it requires a token."""

    def answer(asked: bytes, context: grpc.ServicerContext) -> bytes:
        if request.param and "authorization" not in dict(context.invocation_metadata()):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
        return b""

    service, method = CHECK_ALIVE.lstrip("/").split("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(answer)}
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads, [grpc.method_handlers_generic_handler(service, handlers)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}", request.param
        server.stop(None).wait()


@pytest.fixture
def initialised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses with which Ray was initialised, which has no effect here."""
    addresses: list[str] = []
    for name in (*connection.DRIVER, "RAY_AUTH_MODE"):
        monkeypatch.setenv(name, "disabled" if name == "RAY_AUTH_MODE" else "1")
    monkeypatch.setattr(connection, "reread_environment", lambda: None)
    monkeypatch.setattr(connection, "quiet_driver", lambda: None)
    monkeypatch.setattr(ray, "init", lambda address, **options: addresses.append(address))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=addresses[-1]))
    return addresses


def running_here(monkeypatch: pytest.MonkeyPatch, *addresses: str, remembered: str | None = None) -> None:
    """Ray's clusters on this machine, and the one that Ray remembers."""
    services = ray._private.services
    monkeypatch.setattr(services, "_find_address_from_flag", lambda flag: set(addresses))
    monkeypatch.setattr(services, "find_bootstrap_address", lambda directory: remembered)
    monkeypatch.setattr(services, "resolve_ip_for_localhost", lambda host: host)


def test_a_cluster_found_on_this_machine_is_asked_whether_it_wants_a_token_as_a_named_one_is(
    gcs: tuple[str, bool], initialised: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, protected = gcs
    running_here(monkeypatch, address)
    if protected:
        with pytest.raises(Unavailable, match=f"{address}' refuses this process: set RAY_AUTH_MODE=token"):
            connection.connect_ray(directory=tmp_path)
        assert initialised == []
    else:
        assert connection.connect_ray(directory=tmp_path) == address
        assert initialised == [address]


def test_a_process_that_must_show_a_token_and_has_none_is_told_where_to_name_it(
    initialised: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has_token() -> bool:
        raise AuthenticationError("couldn't find an authentication token")

    loader = SimpleNamespace(has_token=has_token)
    monkeypatch.setattr(ray_private.AuthenticationTokenLoader, "instance", lambda: loader)
    monkeypatch.setattr(connection, "_require_listener", lambda address: None)
    with pytest.raises(
        Unavailable, match="refuses this process: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH"
    ):
        connection.connect_ray("10.0.0.5:6379", directory=tmp_path)
    assert initialised == []


def test_the_variables_of_a_connection_end_with_it(
    initialised: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later ray.init() of the same process would use the authentication of the local cluster, and so would a connection
    elsewhere."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/secret"}
    shown = (*token, connection.DRIVER[0])
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.delenv(connection.DRIVER[0])
    monkeypatch.setattr(connection, "choose", lambda *given: (token, "10.0.0.5:6379"))
    monkeypatch.setattr(connection, "_require_listener", lambda address: None)
    before = {name: os.environ.get(name) for name in shown}

    def now() -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in shown}

    connection.connect_ray(directory=tmp_path)
    assert now() == {**token, connection.DRIVER[0]: DEFAULTS[connection.DRIVER[0]]}
    connection.disconnect_ray()
    assert now() == before
    connection.connect_ray(directory=tmp_path)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/mine")
    connection.disconnect_ray()
    assert now() == {**before, "RAY_AUTH_TOKEN_PATH": "/mine"}, "what the user has set since stays"
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")

    connection.connect_ray(directory=tmp_path)  # which ray.shutdown() ends
    monkeypatch.setattr(connection, "choose", lambda *given: ({}, "10.0.0.6:6379"))
    monkeypatch.setattr(connection, "_require_head", lambda address: None)
    connection.connect_ray(directory=tmp_path)
    assert (now()["RAY_AUTH_MODE"], now()["RAY_AUTH_TOKEN_PATH"]) == ("disabled", None)
    connection.disconnect_ray()

    def refused(*given: object) -> None:
        raise NoCluster("nothing there")

    monkeypatch.setattr(connection, "_require_listener", refused)
    with pytest.raises(NoCluster):
        connection.connect_ray(directory=tmp_path)
    assert now() == before


@pytest.mark.parametrize("remembered", [None, "127.0.0.1:1"], ids=["none", "one that has ended"])
def test_a_machine_without_a_cluster_is_reported_before_ray_tries_to_connect(
    remembered: str | None, initialised: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running_here(monkeypatch, remembered=remembered)
    with pytest.raises(NoCluster, match=r"no Ray cluster runs on this machine.*: start a cluster"):
        connection.connect_ray(directory=tmp_path)
    assert initialised == []


NETWORK = (socket.AF_INET, "10.1.2.3")
LOOPBACK = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "fe80::1%eth0")]


def interfaces(*addresses: tuple[int, str]) -> dict[str, Any]:
    packet = SimpleNamespace(family=socket.AF_PACKET, address="02:42:ac:11:00:02")
    return {"any": [packet, *(SimpleNamespace(family=family, address=text) for family, text in addresses)]}


def test_a_cluster_without_a_token_is_exposed_at_the_machines_addresses_in_networks(
    gcs: tuple[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, protected = gcs
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces(*LOOPBACK, NETWORK))
    assert connection.exposed_at(address) == ([] if protected else ["10.1.2.3"])
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces(*LOOPBACK))
    assert connection.exposed_at(address) == []
