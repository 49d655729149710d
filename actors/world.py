"""A role's only interface to the outside.

A role (TabletServer, Master, ...) is a plain asyncio class that gets a `World` and nothing else. On Ray the world is
real (actors/ray_world.py); in tests it is deterministic (chaos/simulation/). So a role never uses time, random numbers,
files, threads or ray directly; the lint enforces it.

Three rules of every role:

    code that decides does not await; code that awaits does not decide
    after every await, compare term, epoch, ballot or incarnation again
    a call without an answer fails as NotDelivered or OutcomeUnknown, and every caller handles both
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from ebla.actors import errors
from ebla.actors.deadlines import Timeout
from ebla.actors.figures import Figure, Figures, FiguresRequest
from ebla.storage.environment import Disk
from ebla.storage.errors import EblaError, InvalidArgument

Reply = TypeVar("Reply")
T = TypeVar("T")


class Random(Protocol):
    """The part of random.Random that roles use."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float) -> float: ...
    def getrandbits(self, bits: int, /) -> int: ...
    def choice(self, options: Any) -> Any: ...
    def shuffle(self, items: list[Any]) -> None: ...


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never decreases within one incarnation."""

    def wall_us(self) -> int:
        """Microseconds since the epoch. May jump; safety must not depend on it."""

    async def sleep(self, seconds: float) -> None: ...

    def timeout(self, seconds: float) -> Timeout:
        """A block that raises TimeoutError after this time."""


class Network(Protocol):
    async def call(
        self, address: str, method: str, message: msgspec.Struct, reply: type[Reply], timeout_s: float
    ) -> Reply:
        """Call the role at `address` (such as `tablet-server/host-a`) and wait for its answer. Raises NotDelivered or
        OutcomeUnknown, or the role's own EblaError."""


class Faults(Protocol):
    async def here(self, point: str) -> None:
        """A named fault point, before or after a durable step. A no-op in production."""

    def reached(self, mark: str) -> None:
        """Count a rare path; a soak fails if it never takes it."""


class NoFaults:
    """The faults of production: none."""

    async def here(self, point: str) -> None:
        return None

    def reached(self, mark: str) -> None:
        return None


class Neighbours(Protocol):
    """The processes of one host and one deployment, as they see each other."""

    def show(self, process: bytes) -> None:
        """Show `process` to the others as long as this process lives; the last one shown counts."""

    async def ended(self) -> bytes:
        """Wait until a process that this one has seen has ended for certain, and return what it showed. An end may go unnoticed; a
        process that stands still has not ended."""


class NoNeighbours:
    """Of a host where the processes do not see each other."""

    def show(self, process: bytes) -> None:
        return None

    async def ended(self) -> bytes:
        never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        return await never


Spawn = Callable[[Coroutine[Any, Any, None], str], "Task"]


class Task(Protocol):
    def cancel(self) -> Any: ...
    def done(self) -> bool: ...


@dataclass(frozen=True)
class CallerWorld:
    """The world of code that only calls roles: of clients, and of the parts of roles that ask other roles. It has no disk."""

    clock: Clock
    network: Network
    random: Random
    spawn: Spawn

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return self.clock.monotonic()


@dataclass(frozen=True, kw_only=True)
class World(CallerWorld):
    """Everything that a role may use. `address`: this role's own stable name on the network. `validates`: replicas check
    their invariants after every event; only the simulation does."""

    address: str
    disk: Disk
    fail: Callable[[BaseException], None]
    faults: Faults = field(default_factory=NoFaults)
    neighbours: Neighbours = field(default_factory=NoNeighbours)
    validates: bool = False


def new_id(random: Random) -> str:
    """128 random bits in hex: the form of every uuid in ebla."""
    return f"{random.getrandbits(128):032x}"


STOP_S = 30.0  # for a role's graceful stop; durability never depends on it

Handler = Callable[..., Awaitable[Any]]
H = TypeVar("H", bound=Handler)


def rpc(handler: H) -> H:
    """Mark an async method `(self, request: Request) -> Answer` as callable over the network."""
    handler.__rpc__ = True  # type: ignore[attr-defined]
    return handler


class Role:
    """The base of all roles, driven by a shell. A subclass marks its RPCs with @rpc. `parts`: classes whose RPCs are also called at
    this role's address; `perform` finds the object that carries them out."""

    world: World
    parts: ClassVar[tuple[type[Any], ...]] = ()

    async def start(self) -> None:
        """Open the disk and begin to serve. RPCs that arrive before it returns answer NotRunning."""

    async def stop(self) -> None:
        """Graceful stop, within STOP_S. Durability never depends on it."""

    async def perform(self, method: str, request: Any) -> Any:
        """Carry out one of the role's RPCs."""
        return await getattr(self, method)(request)

    def measure(self) -> Iterable[Figure]:
        """The role's present figures: see figures.py. Raises NotRunning before it has started."""
        return ()

    @rpc
    async def figures(self, request: FiguresRequest) -> Figures:
        return Figures(tuple(self.measure()))


@dataclass(frozen=True)
class Method:
    name: str
    request: type[Any]
    answer: type[Any]


def methods(role: type[Any]) -> dict[str, Method]:
    """The RPCs of a role, or of a part of one, by name, with the types of request and answer. Its own come before its parts'."""
    found: dict[str, Method] = {}
    for part in getattr(role, "parts", ()):
        found |= methods(part)
    for name, member in inspect.getmembers(role, inspect.isfunction):
        if not getattr(member, "__rpc__", False):
            continue
        hints = typing.get_type_hints(member)
        answer = hints.pop("return")
        (request,) = hints.values()
        found[name] = Method(name, request, answer)
    return dict(sorted(found.items()))


ERROR = b"\xc1"  # before an error; MessagePack begins nothing with this byte
encode = msgspec.msgpack.Encoder().encode
_decode_error = msgspec.msgpack.Decoder(errors.ErrorFrame).decode


def encode_error(error: EblaError) -> bytes:
    return ERROR + encode(errors.to_frame(error))


def decode_answer(data: bytes, answer: type[Reply]) -> Reply:
    """Return the answer, or raise the role's error."""
    if data[:1] == ERROR:
        raise errors.from_frame(_decode_error(memoryview(data)[1:]))
    decode = _answers.get(answer)
    if decode is None:
        decode = _answers[answer] = msgspec.msgpack.Decoder(answer).decode
    found: Reply = decode(data)
    return found


_answers: dict[type[Any], Callable[[bytes], Any]] = {}  # decoders by type; made once


_decoders: dict[type[Role], Mapping[str, msgspec.msgpack.Decoder[Any]]] = {}  # by role; made once


class Dispatcher:
    """Decodes a request, runs the role's method, encodes its answer. Ray's shell and the simulation share it, so that they
    do not differ here."""

    def __init__(self, role: Role, on_defect: Callable[[str, BaseException], None]) -> None:
        self.role = role
        self.on_defect = on_defect
        kind = type(role)
        if kind not in _decoders:
            requests = {name: method.request for name, method in methods(kind).items()}
            _decoders[kind] = {name: msgspec.msgpack.Decoder(request) for name, request in requests.items()}
        self.decoders = _decoders[kind]

    async def answer(self, method: str, data: bytes) -> bytes:
        decoder = self.decoders.get(method)
        if decoder is None:
            return encode_error(InvalidArgument(f"{self.role.world.address} has no method {method!r}"))
        try:
            request = decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:  # types of columns nest
            return encode_error(InvalidArgument(f"malformed {method} request: {error}"))
        try:
            return encode(await self.role.perform(method, request))
        except errors.NetworkError as error:
            return encode_error(self._unknown(error))
        except EblaError as error:
            return encode_error(error)
        except Exception as error:
            self.on_defect(method, error)
            why = "\n".join([repr(error), *getattr(error, "__notes__", ())])
            return encode_error(errors.Internal(f"{method} failed in {self.role.world.address}: {why}"))

    def _unknown(self, error: errors.NetworkError) -> errors.OutcomeUnknown:
        """The outcome is unknown to the role itself; or to a third role that it called, so that our caller does not know
        which steps were done."""
        address = self.role.world.address
        if error.address in (None, address):
            return errors.OutcomeUnknown(error.message, address=address)
        message = f"{address} does not know the outcome of its call to {error.address}: {error}"
        return errors.OutcomeUnknown(message, address=error.address)


def settle(future: asyncio.Future[T], outcome: T | EblaError) -> None:
    """Give a future its result or error, if its caller still waits."""
    if future.done():
        return
    if isinstance(outcome, EblaError):
        future.set_exception(outcome)
        future.exception()  # retrieved here, since the caller may be gone already
    else:
        future.set_result(outcome)


class NearNetwork:
    """The network of a process that has a second role at the same address: calls there never leave the process."""

    def __init__(self, world: World, near: Dispatcher) -> None:
        self._world = world
        self._near = near

    async def call(
        self, address: str, method: str, message: msgspec.Struct, reply: type[Reply], timeout_s: float
    ) -> Reply:
        if address != self._world.address or method not in self._near.decoders:
            return await self._world.network.call(address, method, message, reply, timeout_s)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._world.spawn(self._ask(method, encode(message), answer), f"{method} in this process")
        try:
            async with self._world.clock.timeout(timeout_s):
                return decode_answer(await answer, reply)
        except TimeoutError:
            raise errors.OutcomeUnknown(
                f"{address} did not answer {method} within {timeout_s:.3g} s", address=address
            ) from None

    async def _ask(self, method: str, data: bytes, answer: asyncio.Future[bytes]) -> None:
        """Carried out also if the caller gives up."""
        settle(answer, await self._near.answer(method, data))
