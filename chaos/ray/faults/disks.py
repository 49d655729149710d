"""Faults of one server's disk: slow, full, failing (through chaos/ray/stage/disk_shim.py), or lost."""

from __future__ import annotations

import asyncio

from ebla.actors.ray_shell import FAILED, RUNNING
from ebla.chaos.plans import Fault
from ebla.chaos.ray.report.injection import Injection, Missed, Unobserved, Violated
from ebla.chaos.ray.stage import victims
from ebla.chaos.ray.stage.disk_shim import DiskShim
from ebla.chaos.ray.stage.stage import RayStage, address_of
from ebla.chaos.ray.stage.victims import SIGNAL_S
from ebla.storage.directories.instance import SET_ASIDE, beside

SYNC_S_MAX = 10.0  # a server with writes syncs many times a second
RETURN_S_MAX = 30.0


async def slow_disk(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """Every sync takes `amount` seconds longer."""
    await _tampered(stage, fault, injection, "slow_disk", round(fault.amount * 1e6), "syncs were slow")


async def slow_disks(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """The same on every host at once; missed if one of them does not run."""
    shim, pids = _shim(stage), [(await stage.victim(host)).pid for host in stage.hosts]
    injection.now(*pids)
    before = {pid: shim.hits(pid) for pid in pids}
    try:
        for pid in before:
            shim.arm(pid, "slow_disk", round(fault.amount * 1e6))
        await asyncio.sleep(fault.for_s)
        hits = {pid: shim.hits(pid) - count for pid, count in before.items()}
    finally:
        for pid in before:
            shim.disarm(pid)
    slowed = sum(count > 0 for count in hits.values())
    if not slowed:
        raise Unobserved(f"no server touched its disk for {fault.for_s:g} s")
    injection.saw(f"{sum(hits.values())} syncs were slow in {slowed} of {len(hits)} processes")
    for host in stage.hosts:
        await stage.back(injection, None, host)


async def full_disk(stage: RayStage, fault: Fault, injection: Injection) -> None:
    await _tampered(stage, fault, injection, "full_disk", 0, "writes found no space")


async def _tampered(
    stage: RayStage, fault: Fault, injection: Injection, kind: str, amount: int, what: str
) -> None:
    shim, process = _shim(stage), await stage.victim(injection.host)
    injection.now(process.pid)
    before = shim.hits(process.pid)
    shim.arm(process.pid, kind, amount)
    try:
        await asyncio.sleep(fault.for_s)
        hits = shim.hits(process.pid) - before
    finally:
        shim.disarm(process.pid)
    if not hits:
        raise Unobserved(f"process {process.pid} did not touch its disk for {fault.for_s:g} s")
    injection.saw(f"{hits} {what} in process {process.pid} of {address_of(injection.host)}")
    await stage.back(injection, None)


async def fail_sync(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """One sync fails. The server ends, sets its directory aside, and returns at once as a new one: `for_s` does not count. The old
    directory is moved away, as operators must do, or a second failure would be final."""
    shim, process = _shim(stage), await stage.victim(injection.host)
    injection.now(process.pid)
    before = shim.hits(process.pid)
    shim.arm(process.pid, "fail_sync", 1)
    try:
        if not await victims.until(lambda: shim.hits(process.pid) > before, SYNC_S_MAX):
            raise Unobserved(f"process {process.pid} synced nothing for {SYNC_S_MAX:g} s")
        injection.saw(f"a sync of process {process.pid} failed with EIO")
    finally:
        shim.disarm(process.pid)
    if not await victims.until_gone(process, SIGNAL_S):
        raise Unobserved(f"process {process.pid} continues after a failed sync")
    injection.saw(f"process {process.pid} of {address_of(injection.host)} has ended")
    stage.destroyed[injection.host] = None
    again = await stage.answer_of(injection.host, process.pid, RETURN_S_MAX, (FAILED, RUNNING))
    if again is None:
        raise Unobserved(f"{address_of(injection.host)} gives no answer after {RETURN_S_MAX:g} s")
    if again.state == FAILED:
        why = again.error.message if again.error else "no reason"
        raise Violated(f"{address_of(injection.host)} does not return after a failed sync: {why}")
    failed = beside(stage.directory(injection.host), SET_ASIDE)
    if not failed.exists():
        raise Violated(f"{address_of(injection.host)} serves again from a disk whose sync has failed")
    injection.saw(f"it is a new server, its old directory is {stage.move_away(injection.host, failed).name}")
    injection.undone()


async def lose_disk(stage: RayStage, fault: Fault, injection: Injection) -> None:
    """The directory and its process are lost. Ray starts the role again at once: `for_s` does not count."""
    process = await stage.victim(injection.host)
    injection.now(process.pid)
    process.suspend()  # so that it writes nothing more, and no other process starts in between
    try:
        await victims.require_stopped(process)
        lost = stage.move_away(injection.host, stage.directory(injection.host))
    finally:
        process.kill()
    await victims.until_gone(process, SIGNAL_S)
    injection.saw(f"process {process.pid} has ended, its directory is {lost.name}")
    await stage.back(injection, process.pid)


def _shim(stage: RayStage) -> DiskShim:
    if stage.needs.shim is None:
        raise Missed("the processes of this cluster were started without the means to fail a disk")
    return stage.needs.shim
