"""Faults of a role's process: killed, stopped, paused, and two incarnations of one role at a time."""

from __future__ import annotations

import asyncio

import psutil

from ebla.actors.ray_shell import RUNNING
from ebla.chaos.plans import Fault
from ebla.chaos.ray.report.struck import Missed, Struck, Unobserved, Violated
from ebla.chaos.ray.stage import victims
from ebla.chaos.ray.stage.stage import RayStage, address_of

STOP_S_MAX = 40.0  # a role has 30 s for its graceful stop
DEAD_S_MAX = 40.0  # Ray's health checks need 17 s by default for a paused node
SECOND_S_MAX = 30.0
ASK_S = 1.0
BESIDE_S = 1.5  # that a superseded process runs beside its successor


async def _kill(struck: Struck, *processes: psutil.Process) -> None:
    struck.now(*(process.pid for process in processes))
    for process in processes:
        process.kill()
    for process in processes:
        if not await victims.until_gone(process, victims.SIGNAL_S):
            raise Unobserved(f"process {process.pid} outlived its SIGKILL")


async def crash(stage: RayStage, fault: Fault, struck: Struck) -> None:
    """SIGKILL. Ray starts the role again at once: `for_s` does not count."""
    process = await stage.victim(struck.host)
    await _kill(struck, process)
    struck.saw(f"process {process.pid} of {address_of(struck.host)} has ended")
    await stage.back(struck, process.pid)


async def blackout(stage: RayStage, fault: Fault, struck: Struck) -> None:
    """SIGKILL of every host's server at the same moment."""
    processes = [await stage.victim(host) for host in stage.hosts]
    await _kill(struck, *processes)
    struck.saw(f"all {len(processes)} servers have ended")
    for host, process in zip(stage.hosts, processes, strict=True):
        await stage.back(struck, process.pid, host)


async def client_crash(stage: RayStage, fault: Fault, struck: Struck) -> None:
    """SIGKILL of a process of clients, which never returns: its last operations have no end. The one with the pulse is spared."""
    process = stage.crowd.victim() if stage.crowd is not None else None
    if process is None:
        raise Missed("there is no process of clients beside the one with the pulse")
    await _kill(struck, process)
    struck.saw(f"process {process.pid} of clients has ended")
    struck.undone()


async def stop(stage: RayStage, fault: Fault, struck: Struck) -> None:
    """End a role as `ebla down` does, and start it after `for_s` as `ebla up` does."""
    process = await stage.victim(struck.host)
    struck.now(process.pid)
    await stage.shut_down(struck.host)
    if not await victims.until_gone(process, STOP_S_MAX):
        raise Unobserved(f"{address_of(struck.host)} did not stop within {STOP_S_MAX:g} s")
    struck.saw(f"{address_of(struck.host)} stopped gracefully, process {process.pid} has ended")
    await asyncio.sleep(fault.for_s)
    await stage.relaunch()
    await stage.back(struck, process.pid)


async def pause(stage: RayStage, fault: Fault, struck: Struck) -> None:
    process = await stage.victim(struck.host)
    struck.now(process.pid)
    process.suspend()
    try:
        await victims.require_stopped(process)
        struck.saw(f"process {process.pid} of {address_of(struck.host)} is in state T")
        await asyncio.sleep(fault.for_s)
    finally:
        victims.resume(process)
    await stage.back(struck, None)


async def zombie(stage: RayStage, fault: Fault, struck: Struck) -> None:
    """Pause the host's raylet and role until Ray takes their node for dead. Another node with the same label joins, and Ray starts a
    second incarnation there, which must find the directory locked. After `for_s` the first one resumes beside it; then its raylet
    resumes, learns that Ray declared it dead, and ends with it."""
    number = stage.number(struck.host)
    first, raylet = await stage.victim(struck.host), stage.raylet(number)
    node_id = await stage.node_id(struck.host)
    struck.now(first.pid, raylet.pid)
    raylet.suspend()
    first.suspend()
    try:
        if not await stage.until_dead(node_id, DEAD_S_MAX):
            raise Unobserved(f"Ray still takes node {node_id[:8]} for alive after {DEAD_S_MAX:g} s")
        struck.saw(f"Ray takes node {node_id[:8]} for dead, whose processes are paused")
        await stage.supersede_node(number)
        await _second_incarnation(stage, struck, first)
        await asyncio.sleep(fault.for_s)
        victims.resume(first)
        await asyncio.sleep(BESIDE_S)
        await _require_one(stage, struck, first)
        if not victims.gone(first):
            struck.saw(f"process {first.pid} runs beside it for {BESIDE_S:g} s")
    finally:
        victims.resume(first)
        victims.resume(raylet)
    for process in (raylet, first):
        if not await victims.until_gone(process, SECOND_S_MAX):
            raise Unobserved(f"process {process.pid} of the superseded node does not end")
    await stage.back(struck, first.pid)


async def _second_incarnation(stage: RayStage, struck: Struck, first: psutil.Process) -> None:
    address = address_of(struck.host)
    pong = await stage.answer_of(struck.host, first.pid, SECOND_S_MAX)
    if pong is None:
        raise Unobserved(f"Ray started no second incarnation of {address} within {SECOND_S_MAX:g} s")
    struck.pids.append(pong.pid)
    why = f", it waits: {pong.error.message}" if pong.error is not None else ""
    struck.saw(f"process {pong.pid} is a second incarnation of {address}, {pong.state}{why}")
    await _require_one(stage, struck, first)


async def _require_one(stage: RayStage, struck: Struck, first: psutil.Process) -> None:
    pong = await stage.answer_of(struck.host, first.pid, ASK_S, (RUNNING,))
    if pong is not None and not victims.gone(first):
        raise Violated(f"process {pong.pid} serves {address_of(struck.host)} while process {first.pid} lives")
