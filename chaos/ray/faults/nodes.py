"""Faults of a whole Ray node: lost and returned, or standing still."""

from __future__ import annotations

import asyncio

from ebla.chaos.plans import Fault
from ebla.chaos.ray.faults.processes import SIGNAL_S
from ebla.chaos.ray.report.struck import Struck, Unobserved
from ebla.chaos.ray.stage import victims
from ebla.chaos.ray.stage.stage import RayStage

DEAD_S_MAX = 30.0
ENDS_S_MAX = 30.0  # a raylet that wakes up as a dead one ends by itself


async def node_loss(stage: RayStage, fault: Fault, struck: Struck) -> None:
    """SIGKILL of the raylet; its workers die by themselves. After `for_s`, and not before Ray knows that it is dead,
    a node with the same label returns."""
    number = stage.number(struck.host)
    role = await stage.victim(struck.host)
    node_id, raylet = await stage.node_id(struck.host), stage.raylet(number)
    struck.now(raylet.pid, role.pid)
    returns_s = stage.now_s() + fault.for_s
    await stage.kill_node(number)
    if not victims.gone(raylet) or not victims.gone(role):
        raise Unobserved(f"raylet {raylet.pid} or role {role.pid} of node {number} outlived the node")
    struck.saw(f"raylet {raylet.pid} and role {role.pid} of node {number} are gone")
    if not await stage.until_dead(node_id, DEAD_S_MAX):
        raise Unobserved(f"Ray still takes node {node_id[:8]} for alive after {DEAD_S_MAX:g} s")
    struck.saw(f"Ray takes node {node_id[:8]} for dead")
    await asyncio.sleep(max(0.0, returns_s - stage.now_s()))
    await stage.start_node(number)  # the nemesis does, before act two, where it did not come to this
    await stage.back(struck, role.pid)


async def node_pause(stage: RayStage, fault: Fault, struck: Struck) -> None:
    """SIGSTOP of every process of the node. If Ray has given it up by the time it goes on, it ends, and returns as any
    lost node does."""
    number = stage.number(struck.host)
    await stage.victim(struck.host)
    node_id, raylet = await stage.node_id(struck.host), stage.raylet(number)
    processes = await stage.processes(number)
    struck.now(*(process.pid for process in processes))
    try:
        for process in processes:
            process.suspend()
        for process in processes:
            if not await victims.until_still(process, SIGNAL_S) and not victims.gone(process):
                raise Unobserved(f"process {process.pid} goes on in spite of its SIGSTOP")
        struck.saw(f"{len(processes)} processes of node {number} are in state T")
        await asyncio.sleep(fault.for_s)
    finally:
        for process in processes:
            victims.resume(process)
    if await stage.dead(node_id):
        struck.saw(f"Ray had given node {node_id[:8]} up by then")
        if not await victims.until_gone(raylet, ENDS_S_MAX):
            raise Unobserved(f"raylet {raylet.pid}, which Ray has given up, does not end")
        await stage.start_node(number)
    await stage.back(struck, None)
