"""Faults of a role's process: killed, stopped, paused, and two incarnations of one role at a time."""

from __future__ import annotations

import asyncio

import psutil

from ebla.actors.ray_shell import RUNNING
from ebla.chaos.plans import Fault
from ebla.chaos.ray.report.struck import Missed, Struck, Unobserved, Violated
from ebla.chaos.ray.stage import victims
from ebla.chaos.ray.stage.stage import RayStage, address_of

SIGNAL_S = 5.0  # from a signal to its effect: the kernel is quick, unless a disk is not
STOP_S_MAX = 40.0  # a role has 30 s for its goodbye
DEAD_S_MAX = 40.0  # Ray's health checks need 17 s by default for a node that stands still
SECOND_S_MAX = 30.0
ASK_S = 1.0
BESIDE_S = 1.5  # that a superseded process goes on beside its successor


async def crash(stage: RayStage, fault: Fault, struck: Struck) -> None:
    """SIGKILL. Ray starts the role again at once: `for_s` does not count."""
    process = await stage.victim(struck.host)
    struck.now(process.pid)
    process.kill()
    if not await victims.until_gone(process, SIGNAL_S):
        raise Unobserved(f"process {process.pid} outlived its SIGKILL")
    struck.saw(f"process {process.pid} of {address_of(struck.host)} is gone")
    await stage.back(struck, process.pid)


async def blackout(stage: RayStage, fault: Fault, struck: Struck) -> None:
    """SIGKILL of every host's server at the same moment."""
    processes = [await stage.victim(host) for host in stage.hosts]
    struck.now(*(process.pid for process in processes))
    for process in processes:
        process.kill()
    for process in processes:
        if not await victims.until_gone(process, SIGNAL_S):
            raise Unobserved(f"process {process.pid} outlived its SIGKILL")
    struck.saw(f"all {len(processes)} servers are gone")
    for host, process in zip(stage.hosts, processes, strict=True):
        await stage.back(struck, process.pid, host)


async def client_crash(stage: RayStage, fault: Fault, struck: Struck) -> None:
    """SIGKILL of a process of clients, which never returns: what it asked last has no end. The one that takes the pulse
    is spared."""
    process = stage.crowd.victim() if stage.crowd is not None else None
    if process is None:
        raise Missed("there is no process of clients beside the one that takes the pulse")
    struck.now(process.pid)
    process.kill()
    if not await victims.until_gone(process, SIGNAL_S):
        raise Unobserved(f"process {process.pid} outlived its SIGKILL")
    struck.saw(f"process {process.pid} of clients is gone")
    struck.undone()


async def stop(stage: RayStage, fault: Fault, struck: Struck) -> None:
    """As `ebla down` ends a role, and after `for_s` as `ebla up` brings it back."""
    process = await stage.victim(struck.host)
    struck.now(process.pid)
    await stage.shut_down(struck.host)
    if not await victims.until_gone(process, STOP_S_MAX):
        raise Unobserved(f"{address_of(struck.host)} was asked to end and has not within {STOP_S_MAX:g} s")
    struck.saw(f"{address_of(struck.host)} said goodbye, process {process.pid} is gone")
    await asyncio.sleep(fault.for_s)
    await stage.relaunch()
    await stage.back(struck, process.pid)


async def pause(stage: RayStage, fault: Fault, struck: Struck) -> None:
    process = await stage.victim(struck.host)
    struck.now(process.pid)
    process.suspend()
    try:
        if not await victims.until_still(process, SIGNAL_S):
            raise Unobserved(f"process {process.pid} goes on in spite of its SIGSTOP")
        struck.saw(f"process {process.pid} of {address_of(struck.host)} is in state T")
        await asyncio.sleep(fault.for_s)
    finally:
        victims.resume(process)
    await stage.back(struck, None)


async def zombie(stage: RayStage, fault: Fault, struck: Struck) -> None:
    """The host's raylet and role stand still until Ray takes their node for dead. Another node with the same label
    joins, and Ray starts a second incarnation there, which must find the directory held. After `for_s` the first one
    goes on beside it; then its raylet wakes up, learns that it is dead, and ends with it."""
    number = stage.number(struck.host)
    first, raylet = await stage.victim(struck.host), stage.raylet(number)
    node_id = await stage.node_id(struck.host)
    struck.now(first.pid, raylet.pid)
    raylet.suspend()
    first.suspend()
    try:
        if not await stage.until_dead(node_id, DEAD_S_MAX):
            raise Unobserved(f"Ray still takes node {node_id[:8]} for alive after {DEAD_S_MAX:g} s")
        struck.saw(f"Ray takes node {node_id[:8]} for dead, whose processes stand still")
        await stage.supersede_node(number)
        await _second_incarnation(stage, struck, first)
        await asyncio.sleep(fault.for_s)
        victims.resume(first)
        await asyncio.sleep(BESIDE_S)
        await _require_one(stage, struck, first)
        if not victims.gone(first):
            struck.saw(f"process {first.pid} goes on beside it for {BESIDE_S:g} s")
    finally:
        victims.resume(first)
        victims.resume(raylet)
    for process in (raylet, first):
        if not await victims.until_gone(process, SECOND_S_MAX):
            raise Unobserved(f"process {process.pid} of the node that was superseded does not end")
    await stage.back(struck, first.pid)


async def _second_incarnation(stage: RayStage, struck: Struck, first: psutil.Process) -> None:
    address = address_of(struck.host)
    pong = await stage.heard(struck.host, first.pid, SECOND_S_MAX)
    if pong is None:
        raise Unobserved(f"Ray started no second incarnation of {address} within {SECOND_S_MAX:g} s")
    struck.pids.append(pong.pid)
    why = f", it waits: {pong.error.message}" if pong.error is not None else ""
    struck.saw(f"process {pong.pid} is a second incarnation of {address}, {pong.state}{why}")
    await _require_one(stage, struck, first)


async def _require_one(stage: RayStage, struck: Struck, first: psutil.Process) -> None:
    """Whoever holds the directory serves, and nobody else."""
    pong = await stage.heard(struck.host, first.pid, ASK_S, (RUNNING,))
    if pong is not None and not victims.gone(first):
        raise Violated(f"process {pong.pid} serves {address_of(struck.host)} while process {first.pid} lives")
