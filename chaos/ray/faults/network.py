"""Faults of the network between nodes with namespaces of their own, and failing calls that Ray injects."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence

from ebla.actors.errors import NetworkError
from ebla.actors.ray_world import RayNetwork
from ebla.chaos.plans import Fault
from ebla.chaos.ray.report.injection import Injection, Missed, Unobserved
from ebla.chaos.ray.stage import victims
from ebla.chaos.ray.stage.namespaces import Namespaces
from ebla.chaos.ray.stage.stage import RayStage

FAILING, LATE = "RAY_testing_rpc_failure", "RAY_testing_asio_delay_us"
CALLS = "CoreWorkerService.grpc_{}.PushTask"  # every call of an actor
LOST_MAX = 0.1  # Ray's own calls to start actors are lost, too: with more, clusters fail
LATE_S_MAX = 0.05  # of every call: Ray cannot select some
SILENT_S = 1.0
PROBES = 150
PROBE_S = 2.0


# -- between two nodes ---------------------------------------------------------------------------------------


async def isolate(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """Take the node's link down: no peer, no master, no client, no GCS."""
    network, number = _network(stage), stage.number(injection.host)
    await stage.victim(injection.host)
    injection.now()
    network.isolate(number)
    try:
        if not await victims.until(lambda: network.isolated(number), 1.0):
            raise Unobserved(f"the link of node {number} is still up")
        injection.saw(f"the link of node {number} is down")
        heals_s = stage.now_s() + fault.for_s
        if await stage.silent(injection.host, min(SILENT_S, fault.for_s)):
            injection.saw("it gives no answer")
        await asyncio.sleep(max(0.0, heals_s - stage.now_s()))
    finally:
        network.rejoin(number)
    await _whole(stage, injection)


async def split(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """Cut these nodes off from the others, but not from the head."""
    inside = [stage.number(host) for host in fault.where]
    outside = [stage.number(host) for host in stage.hosts[1:] if host not in fault.where]
    if not outside:
        raise Missed("there is no node on the other side")
    ways = [(a, b) for a in inside for b in outside]
    await _silenced(stage, fault, injection, [*ways, *((b, a) for a, b in ways)])


async def cut(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """Cut two nodes off from each other, or only the first from the second (`cut_one_way`)."""
    first, second = (stage.number(host) for host in fault.where)
    back = [] if fault.kind == "cut_one_way" else [(second, first)]
    await _silenced(stage, fault, injection, [(first, second), *back])


async def _silenced(
    stage: RayStage, fault: Fault, injection: Injection, ways: Sequence[tuple[int, int]]
) -> None:
    network = _network(stage)
    injection.now()
    try:
        for speaker, listener in ways:
            network.silence(speaker, listener)
            if not network.silenced(speaker, listener):
                raise Unobserved(f"node {speaker} has no blackhole route to node {listener}")
            injection.saw(f"node {speaker} has a blackhole route to node {listener}")
        await asyncio.sleep(fault.for_s)
    finally:
        for speaker, listener in ways:
            network.unsilence(speaker, listener)
    await _whole(stage, injection)


def _network(stage: RayStage) -> Namespaces:
    if stage.needs.namespaces is None:
        raise Missed("the nodes of this cluster share one network")
    return stage.needs.namespaces


async def _whole(stage: RayStage, injection: Injection) -> None:
    """Wait until the hosts serve again. A node that Ray has given up, because it was cut off from the head, is started again."""
    for host in injection.report.fault.where:
        number = stage.number(host)
        if not stage.cluster.alive(number):
            injection.saw(f"Ray had given node {number} up")
            await stage.start_node(number)
    await stage.back(injection, None)


# -- all calls of a run --------------------------------------------------------------------------------------


def environment(faults: Sequence[Fault]) -> dict[str, str]:
    """The environment in which Ray injects the worst of these faults (`lose`, `delay`), as long as processes run: Ray reads it once."""
    found: dict[str, str] = {}
    if lost := lost_share(faults):
        half = max(1, round(lost * 100 / 2))
        settings = {"num_failures": -1, "req_failure_prob": half, "resp_failure_prob": half}
        found[FAILING] = json.dumps({CALLS.format("client"): settings})
    if late := late_s(faults):
        found[LATE] = f"{CALLS.format('server')}=0:{round(late * 1e6)}"
    return found


def lost_share(faults: Sequence[Fault]) -> float:
    return min(LOST_MAX, max((fault.amount for fault in faults if fault.kind == "lose"), default=0.0))


def late_s(faults: Sequence[Fault]) -> float:
    return min(LATE_S_MAX, max((fault.amount for fault in faults if fault.kind == "delay"), default=0.0))


def measure(injection: Injection, calls: Sequence[float | None]) -> None:
    """Note whether calls are lost or late in this run: `calls` is the result of `sample` in a process of clients."""
    injection.now()
    took = sorted(seconds for seconds in calls if seconds is not None)
    if injection.report.fault.kind == "lose":
        lost = len(calls) - len(took)
        if not lost:
            raise Unobserved(f"none of {len(calls)} calls was lost")
        injection.saw(f"{lost} of {len(calls)} calls were lost, throughout the run")
        return
    median_s = took[len(took) // 2] if took else 0.0
    if median_s < late_s([injection.report.fault]) / 4:  # the average delay is half of the amount
        raise Unobserved(f"calls took {median_s * 1e3:.1f} ms")
    injection.saw(f"calls took {median_s * 1e3:.1f} ms, throughout the run")


async def sample(network: RayNetwork, addresses: Sequence[str]) -> list[float | None]:
    """Ping the roles in turn. Returns how long each call took, None for a lost one."""
    took: list[float | None] = []
    for number in range(PROBES):
        began = time.monotonic()
        try:
            await victims.ask(network, addresses[number % len(addresses)], PROBE_S)
        except NetworkError:
            took.append(None)
        else:
            took.append(time.monotonic() - began)
    return took
