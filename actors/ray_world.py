"""The real world: Ray's actors as the network, this machine's clock, an LMDB directory.

In actors/ only this module and ray_metrics.py import ray. A role on Ray is a detached actor named by its address, whose
methods are the role's RPCs; actors/ray_shell.py drives the role inside it. Roles, drivers and Spark's workers use the
same network: any asyncio loop of a process that is connected to the Ray cluster.

Ray's failures become the two that callers know:

    NotDelivered     the name does not exist, or Ray refused the call before sending it (too many pending)
    OutcomeUnknown   all others: actors that died, are restarting or unreachable, and timeouts. Ray may raise an error
                     for a call that did run.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import ray
import ray.actor
import ray.exceptions

from ebla.actors.deadlines import count_cancellations, timeout
from ebla.actors.errors import NotDelivered, OutcomeUnknown
from ebla.actors.neighbours import HostNeighbours
from ebla.actors.ray_metrics import Exporter
from ebla.actors.ray_shell import Assignment, MachineClock, Shell, Tasks, end_process
from ebla.actors.world import Neighbours, Role, World, decode_answer, encode, methods
from ebla.storage.environment import Disk
from ebla.storage.errors import InvalidArgument

Reply = TypeVar("Reply")

CALLS_MAX = 10_000  # at one time in one actor; the roles have their own, smaller limits
PENDING_MAX = 10_000  # of one caller to one actor, beyond that Ray refuses
# Frequent calls: without Ray's event for each call they are a tenth cheaper, and do not fill the dashboard's timeline.
QUIET = (
    *("replicate", "write", "read", "scan_more", "heartbeat", "liveness", "beacon"),
    *("add_entries", "confirm", "read_entries", "copy_entries", "read_tail"),
)
# Objects up to this size travel in the message itself, a setting of the sending process. Above 100 kB Ray would use the
# object store, which writes them to shared memory on one node and pulls them from another: bulk writes and scans would be
# a tenth to a third slower.
INLINE_BYTES = 4_000_000
# Each of malloc's arenas keeps the memory that its threads have freed. A role has a dozen threads, of which rarely two
# work at a time: one arena costs no speed, and makes a tablet server under load a fifth smaller.
ARENAS_MAX = 1
# Arrow's own allocator keeps what it has freed, too: a server under load is a fifth smaller without it, and as fast.
ARROW_POOL = "system"
ACTOR: dict[str, Any] = {
    "runtime_env": {
        "env_vars": {
            "RAY_max_direct_call_object_size": str(INLINE_BYTES),
            "MALLOC_ARENA_MAX": str(ARENAS_MAX),
            "ARROW_DEFAULT_MEMORY_POOL": ARROW_POOL,
        }
    },
    "max_restarts": -1,
    "max_task_retries": 0,
    "max_concurrency": CALLS_MAX,
    "max_pending_calls": PENDING_MAX,
    "lifetime": "detached",
    "num_cpus": 0,
}
TRIM_S = 5.0  # between two looks at the CPU time
BUSY_SHARE = 0.2  # of a core: above that, a process is busy
COLLECT_AT = (20_000, 20, 20)  # new objects, and younger generations' runs, before the collector runs
LOOKUPS_MAX = 4  # threads for lookups in the GCS; a GCS that hangs blocks only these


class RayNetwork:
    """Calls roles by address in one deployment's namespace. Handles are cached, because a lookup calls the GCS."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._handles: dict[str, Any] = {}
        self._lookups: dict[str, Future[Any]] = {}
        self._threads = ThreadPoolExecutor(LOOKUPS_MAX, "ebla-lookup")

    async def call(
        self, address: str, method: str, message: msgspec.Struct, reply: type[Reply], timeout_s: float
    ) -> Reply:
        return decode_answer(await self.call_raw(address, method, encode(message), timeout_s), reply)

    async def call_raw(self, address: str, method: str, data: bytes, timeout_s: float) -> bytes:
        """The encoded answer to an encoded request."""
        reference = None
        try:
            async with timeout(timeout_s):
                handle = self._handles.get(address) or await self._find(address)
                reference = self._submit(handle, address, method, data)
                return await reference  # type: ignore[no-any-return]
        except TimeoutError as error:
            if reference is None:
                raise NotDelivered(
                    f"{address} was not found within {timeout_s:.3g} s: is the Ray cluster reachable?",
                    address=address,
                ) from error
            raise _silent(address, method, timeout_s) from None
        except ray.exceptions.RayError as error:
            raise self._lost(address, method, error) from error

    def known(self, address: str) -> bool:
        """Whether a call needs no lookup."""
        return address in self._handles

    def call_blocking(
        self, address: str, method: str, message: msgspec.Struct, reply: type[Reply], timeout_s: float
    ) -> Reply:
        """Call from a thread that may block. Fails as `call` does; the address must be known."""
        handle = self._handles.get(address)
        if handle is None:
            raise NotDelivered(f"{address} has not been looked up yet", address=address)
        try:
            reference = self._submit(handle, address, method, encode(message))
            return decode_answer(ray.get(reference, timeout=timeout_s), reply)
        except ray.exceptions.GetTimeoutError:
            raise _silent(address, method, timeout_s) from None
        except ray.exceptions.RayError as error:
            raise self._lost(address, method, error) from error

    def forget(self) -> None:
        """Forget all handles, after the process has connected to another Ray cluster."""
        self._handles.clear()

    def _submit(self, handle: Any, address: str, method: str, data: bytes) -> Any:
        remote = getattr(handle, method, None)
        if remote is None:
            self._handles.pop(address, None)
            raise InvalidArgument(f"{address} has no method {method!r}; is it another version of ebla?")
        try:
            return remote.remote(data)
        except ray.exceptions.PendingCallsLimitExceeded as error:
            raise NotDelivered(
                f"{PENDING_MAX} calls to {address} are pending already; back off", address=address
            ) from error

    def _lost(self, address: str, method: str, error: ray.exceptions.RayError) -> OutcomeUnknown:
        """Forget the handle: the name may belong to a new actor, even if Ray reports the actor as unavailable."""
        self._handles.pop(address, None)
        return OutcomeUnknown(f"{method} at {address}: {reason(error)}", address=address)

    async def _find(self, address: str) -> Any:
        """One lookup at a time per address, shared by the callers of every loop."""
        if not ray.is_initialized():  # a lookup would start a new Ray cluster
            raise NotDelivered(
                "this process is not connected to a Ray cluster; use ebla.connect()", address=address
            )
        lookup = self._lookups.get(address)
        if lookup is None:
            lookup = self._lookups[address] = self._threads.submit(
                ray.get_actor, address, namespace=self.namespace
            )
            lookup.add_done_callback(lambda _: self._lookups.pop(address, None))
        try:
            handle = await asyncio.shield(asyncio.wrap_future(lookup))
        except (ValueError, ray.exceptions.RayError) as error:
            raise NotDelivered(
                f"{address} was not found in namespace {self.namespace}: {_short(error)}", address=address
            ) from error
        self._handles[address] = handle
        return handle


def ray_world(
    address: str,
    namespace: str,
    disk: Disk,
    tasks: Tasks,
    fail: Callable[[BaseException], None],
    neighbours: Neighbours,
) -> World:
    """The world of one role. `tasks` has the role's background tasks; `fail` ends the process."""
    return World(
        address=address,
        clock=MachineClock(),
        network=RayNetwork(namespace),
        disk=disk,
        random=random.Random(os.urandom(32)),
        spawn=tasks.spawn,
        fail=fail,
        neighbours=neighbours,
    )


class RoleActor:
    """The base of every actor. A subclass, made by `actor_class`, adds the role's RPCs as methods."""

    def __init__(self, assignment: bytes) -> None:
        _settle_garbage()
        count_cancellations(asyncio.get_running_loop())
        own = msgspec.msgpack.decode(assignment, type=Assignment)
        self._address, self._started_us = own.address, time.time_ns() // 1000
        context = ray.get_runtime_context()
        self._node_id, self._restarted = context.get_node_id(), context.was_current_actor_reconstructed

        host = f"{own.namespace} {Path(own.root).parent}"  # the roles of a host have neighbouring directories
        neighbours = HostNeighbours(MachineClock(), host)

        def make_world(disk: Disk, tasks: Tasks, fail: Callable[[BaseException], None]) -> World:
            return ray_world(own.address, own.namespace, disk, tasks, fail, neighbours)

        self._trimming = asyncio.create_task(trim_after_load(time.process_time, asyncio.sleep, _malloc_trim))
        exporter = Exporter(own.namespace.removeprefix("ebla-"), own.address, own.slot)
        self._shell = Shell(own, make_world, MachineClock(), end_process, exporter.export)

    def __repr__(self) -> str:
        return self._address

    async def ping(self, data: bytes = b"") -> bytes:
        """An encoded Pong, in every state of the role."""
        return self._shell.pong(self._node_id, self._restarted, self._started_us)

    async def shutdown(self, data: bytes = b"") -> None:
        """Stop gracefully and end for good: Ray does not start the actor again. The caller's call fails by that end."""
        await self._shell.stop()
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]


def _settle_garbage() -> None:
    """Exempt modules, which stay for the life of the process, from garbage collection, and collect less often: most values
    of a role are freed with their last reference."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AT)


async def trim_after_load(
    cpu_s: Callable[[], float], sleep: Callable[[float], Awaitable[None]], trim: Callable[[], None]
) -> None:
    """Give memory back to the system whenever a busy time is over: malloc keeps what was freed below anything that is in use, which
    is 100 MB in a tablet server after a load."""
    busy, before = False, cpu_s()
    while True:
        await sleep(TRIM_S)
        was_busy, now = busy, cpu_s()
        busy, before = now - before > TRIM_S * BUSY_SHARE, now
        if was_busy and not busy:
            trim()


def _malloc_trim() -> None:
    """Of glibc; other C libraries have no such function."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def actor_class(role: type[Role]) -> type[RoleActor]:
    """The role as an actor class of the same name, with the role's RPCs as methods of bytes to bytes."""
    rpcs = {name: _rpc(name) for name in methods(role)}
    taken = sorted(set(rpcs) & set(dir(RoleActor)))
    assert not taken, f"{role.__name__} has RPCs named like the actor's own methods: {taken}"
    return type(role.__name__, (RoleActor,), rpcs)


def _rpc(name: str) -> Callable[[RoleActor, bytes], Coroutine[Any, Any, bytes]]:
    async def method(self: RoleActor, data: bytes) -> bytes:
        return await self._shell.answer(name, data)

    method.__name__ = method.__qualname__ = name
    marked: Any = ray.method(enable_task_events=name not in QUIET)(method)
    return cast(Callable[[RoleActor, bytes], Coroutine[Any, Any, bytes]], marked)


@cache
def remote_class(role: type[Role]) -> Any:
    """One actor class for each role, which Ray exports once for a job: the export disassembles the class, which takes 0.1 s.
    Use as `.options(name=..., namespace=..., scheduling_strategy=...).remote(encoded Assignment)`.

    Ray restarts it without limit and repeats no call: a failed call may have run, and its caller decides.
    """
    return ray.remote(**ACTOR)(actor_class(role))


def _silent(address: str, method: str, timeout_s: float) -> OutcomeUnknown:
    return OutcomeUnknown(f"{address} did not answer {method} within {timeout_s:.3g} s", address=address)


def reason(error: ray.exceptions.RayError) -> str:
    """Why an actor gave no answer, without names of Ray's classes where these say nothing more."""
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return "its process restarts, or its host cannot be reached"
    if isinstance(error, ray.exceptions.RayActorError | ray.exceptions.WorkerCrashedError):
        return "its process has ended"
    return _short(error)


def _short(error: BaseException) -> str:
    """The first line of Ray's message, which can be pages long."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
