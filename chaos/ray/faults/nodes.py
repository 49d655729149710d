"""Faults of a whole Ray node: lost and returned, lost for good, or paused."""

from __future__ import annotations

import asyncio

import psutil

from ebla.chaos.plans import Fault
from ebla.chaos.ray.report.injection import Injection, Unobserved
from ebla.chaos.ray.stage import victims
from ebla.chaos.ray.stage.stage import RayStage

DEAD_S_MAX = 30.0
ENDS_S_MAX = 30.0  # a raylet that resumes after Ray declared it dead ends by itself


async def node_loss(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """SIGKILL of the raylet; its workers then end by themselves. After `for_s`, and not before Ray has declared the node dead, a node
    with the same label starts."""
    role, killed_s = await _kill(stage, injection, for_good=False)
    await asyncio.sleep(max(0.0, killed_s + fault.for_s - stage.now_s()))
    await stage.start_node(
        stage.number(injection.host)
    )  # after an error the nemesis does this before act two
    await stage.back(injection, role.pid)


async def lose_host(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """SIGKILL of the raylet of a store's host, whose node never returns."""
    await _kill(stage, injection, for_good=True)


async def _kill(stage: RayStage, injection: Injection, *, for_good: bool) -> tuple[psutil.Process, float]:
    """Return when Ray has declared the node dead. Returns the role's process, and when the node was killed."""
    number = stage.number(injection.host)
    role = await stage.victim(injection.host)
    node_id, raylet = await stage.node_id(injection.host), stage.raylet(number)
    injection.now(raylet.pid, role.pid)
    killed_s = stage.now_s()
    if for_good:
        stage.gone[stage.slot(injection.host)] = None
    await stage.kill_node(number)
    if not victims.gone(raylet) or not victims.gone(role):
        raise Unobserved(f"raylet {raylet.pid} or role {role.pid} of node {number} outlived the node")
    ended = "have ended for good" if for_good else "have ended"
    injection.saw(f"raylet {raylet.pid} and role {role.pid} of node {number} {ended}")
    if not await stage.until_dead(node_id, DEAD_S_MAX):
        raise Unobserved(f"Ray still takes node {node_id[:8]} for alive after {DEAD_S_MAX:g} s")
    injection.saw(f"Ray takes node {node_id[:8]} for dead")
    return role, killed_s


async def node_pause(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """SIGSTOP of every process of the node. If Ray has given the node up before it resumes, it ends, and is started again as a lost
    one."""
    number = stage.number(injection.host)
    await stage.victim(injection.host)
    node_id, raylet = await stage.node_id(injection.host), stage.raylet(number)
    processes = await stage.processes(number)
    injection.now(*(process.pid for process in processes))
    try:
        for process in processes:
            process.suspend()
        for process in processes:
            if not victims.gone(process):
                await victims.require_stopped(process)
        injection.saw(f"{len(processes)} processes of node {number} are in state T")
        await asyncio.sleep(fault.for_s)
    finally:
        for process in processes:
            victims.resume(process)
    if await stage.dead(node_id):
        injection.saw(f"Ray had given up node {node_id[:8]} by then")
        if not await victims.until_gone(raylet, ENDS_S_MAX):
            raise Unobserved(f"raylet {raylet.pid}, which Ray has given up, does not end")
        await stage.start_node(number)
    await stage.back(injection, None)
