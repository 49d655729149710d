"""Faults of a role's process: killed, stopped, paused, and two incarnations of one role at a time."""

from __future__ import annotations

import asyncio

import psutil

from ebla.actors.ray_shell import RUNNING
from ebla.chaos.plans import Fault
from ebla.chaos.ray.report.injection import Injection, Missed, Unobserved, Violated
from ebla.chaos.ray.stage import victims
from ebla.chaos.ray.stage.stage import RayStage, address_of

STOP_S_MAX = 40.0  # a role has 30 s for its graceful stop
DEAD_S_MAX = 40.0  # Ray's health checks need 17 s by default for a paused node
SECOND_S_MAX = 30.0
ASK_S = 1.0
NO_CLIENTS = "there is no process of clients beside the one with the pulse"
BESIDE_S = 1.5  # that a superseded process runs beside its successor


async def _kill(injection: Injection, *processes: psutil.Process) -> None:
    injection.now(*(process.pid for process in processes))
    for process in processes:
        process.kill()
    for process in processes:
        if not await victims.until_gone(process, victims.SIGNAL_S):
            raise Unobserved(f"process {process.pid} outlived its SIGKILL")


async def crash(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """SIGKILL. Ray starts the role again at once: `for_s` does not count."""
    process = await stage.victim(injection.host)
    await _kill(injection, process)
    injection.saw(f"process {process.pid} of {address_of(injection.host)} has ended")
    await stage.back(injection, process.pid)


async def blackout(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """SIGKILL of every host's server at the same moment."""
    processes = [await stage.victim(host) for host in stage.hosts]
    await _kill(injection, *processes)
    injection.saw(f"all {len(processes)} servers have ended")
    for host, process in zip(stage.hosts, processes, strict=True):
        await stage.back(injection, process.pid, host)


async def client_crash(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """SIGKILL of a process of clients, which never returns: its last operations have no end. The one with the pulse is spared."""
    process = stage.clients.victim() if stage.clients is not None else None
    if process is None:
        raise Missed(NO_CLIENTS)
    await _kill(injection, process)
    injection.saw(f"process {process.pid} of clients has ended")
    injection.undone()


async def client_pause(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """SIGSTOP of a process of clients, whose sessions and locks end meanwhile, and whose logs get other writers."""
    process = stage.clients.other() if stage.clients is not None else None
    if process is None:
        raise Missed(NO_CLIENTS)
    await _pause(process, "clients", fault.for_s, injection)
    injection.undone()


async def stop(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """End a role as `ebla down` does, and start it after `for_s` as `ebla up` does."""
    process = await stage.victim(injection.host)
    injection.now(process.pid)
    await stage.shut_down(injection.host)
    if not await victims.until_gone(process, STOP_S_MAX):
        raise Unobserved(f"{address_of(injection.host)} did not stop within {STOP_S_MAX:g} s")
    injection.saw(f"{address_of(injection.host)} stopped gracefully, process {process.pid} has ended")
    await asyncio.sleep(fault.for_s)
    await stage.relaunch()
    await stage.back(injection, process.pid)


async def pause(stage: RayStage, fault: Fault, injection: Injection) -> None:
    process = await stage.victim(injection.host)
    await _pause(process, address_of(injection.host), fault.for_s, injection)
    await stage.back(injection, None)


async def _pause(process: psutil.Process, named: str, for_s: float, injection: Injection) -> None:
    injection.now(process.pid)
    process.suspend()
    try:
        await victims.require_stopped(process)
        injection.saw(f"process {process.pid} of {named} is in state T")
        await asyncio.sleep(for_s)
    finally:
        victims.resume(process)


async def zombie(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """Pause the host's raylet and role until Ray takes their node for dead. Another node with the same label joins, and Ray starts a
    second incarnation there, which must find the directory locked. After `for_s` the first one resumes beside it; then its raylet
    resumes, learns that Ray declared it dead, and ends with it."""
    number = stage.number(injection.host)
    first, raylet = await stage.victim(injection.host), stage.raylet(number)
    node_id = await stage.node_id(injection.host)
    injection.now(first.pid, raylet.pid)
    raylet.suspend()
    first.suspend()
    try:
        if not await stage.until_dead(node_id, DEAD_S_MAX):
            raise Unobserved(f"Ray still takes node {node_id[:8]} for alive after {DEAD_S_MAX:g} s")
        injection.saw(f"Ray takes node {node_id[:8]} for dead, whose processes are paused")
        await stage.supersede_node(number)
        await _second_incarnation(stage, injection, first)
        await asyncio.sleep(fault.for_s)
        victims.resume(first)
        await asyncio.sleep(BESIDE_S)
        await _require_one(stage, injection, first)
        if not victims.gone(first):
            injection.saw(f"process {first.pid} runs beside it for {BESIDE_S:g} s")
    finally:
        victims.resume(first)
        victims.resume(raylet)
    for process in (raylet, first):
        if not await victims.until_gone(process, SECOND_S_MAX):
            raise Unobserved(f"process {process.pid} of the superseded node does not end")
    await stage.back(injection, first.pid)


async def _second_incarnation(stage: RayStage, injection: Injection, first: psutil.Process) -> None:
    address = address_of(injection.host)
    pong = await stage.answer_of(injection.host, first.pid, SECOND_S_MAX)
    if pong is None:
        raise Unobserved(f"Ray started no second incarnation of {address} within {SECOND_S_MAX:g} s")
    injection.note(pids=(*injection.report.pids, pong.pid))
    why = f", it waits: {pong.error.message}" if pong.error is not None else ""
    injection.saw(f"process {pong.pid} is a second incarnation of {address}, {pong.state}{why}")
    await _require_one(stage, injection, first)


async def _require_one(stage: RayStage, injection: Injection, first: psutil.Process) -> None:
    pong = await stage.answer_of(injection.host, first.pid, ASK_S, (RUNNING,))
    if pong is not None and not victims.gone(first):
        raise Violated(
            f"process {pong.pid} serves {address_of(injection.host)} while process {first.pid} lives"
        )
