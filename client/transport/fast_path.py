"""One get or one upsert, in its caller's own thread, when nothing else is on its way: it saves two changes of thread.

Only the first try of a lone call goes this way. Whatever stands against it (another call of this table is under way,
the tablet's server is not known yet, the answer is a refusal or does not come) sends it the ordinary way, where calls of
many threads travel together and refusals are followed. A get may be asked twice; it changes nothing. An upsert that
was sent goes on as the very same request, bytes and id, so it is applied once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from ebla.actors.errors import from_triple
from ebla.actors.messages import (
    UPSERT,
    ReadReply,
    ReadRequest,
    TabletKeys,
    TabletWrite,
    WriteReply,
    WriteRequest,
)
from ebla.options import ATTEMPT_GRACE_S, ATTEMPT_S, WriteId, Written
from ebla.storage.errors import EblaError
from ebla.transport.batches import Ids, encode_batch
from ebla.transport.certainty import Tries
from ebla.transport.routes import Route, TableRoutes, retriable

TRY_S = 1.0  # then the ordinary way takes over, which knows whom else to ask
MISS: Any = object()


class Blocking(Protocol):
    """A network that a thread may wait for: actors/ray_world.py has one, the simulated one has not."""

    def known(self, address: str) -> bool: ...

    def call_blocking(
        self, address: str, method: str, message: msgspec.Struct, reply: type[Any], timeout_s: float
    ) -> Any: ...


class QuickGets:
    """Of one table."""

    def __init__(self, network: Any, table: TableRoutes) -> None:
        self._network: Blocking | None = network if hasattr(network, "call_blocking") else None
        self._table = table
        self._gate = threading.Lock()

    def get(self, key: Mapping[str, Any], deadline_s: float) -> tuple[Any, float]:
        """The row, None, or MISS if it must go the ordinary way; and the time that is left for that."""
        if self._network is None or not self._gate.acquire(blocking=False):
            return MISS, deadline_s
        start = time.monotonic()
        try:
            return self._ask(self._network, key, min(deadline_s, TRY_S)), deadline_s
        except EblaError:
            return MISS, max(0.001, deadline_s - (time.monotonic() - start))
        finally:
            self._gate.release()

    def _ask(self, network: Blocking, key: Mapping[str, Any], timeout_s: float) -> Any:
        table, shape = self._table, self._table.shape
        encoded = shape.keys_only.encode_key(key)
        route = table.routes[shape.partitioner.assign_row(key, encoded)]
        target = route.target
        if not route.running or not network.known(target):
            return MISS
        request = ReadRequest(shape.version, (TabletKeys(route.tablet, [encoded]),))
        reply: ReadReply = network.call_blocking(target, "read", request, ReadReply, timeout_s)
        if reply.errors[0] is not None:
            raise from_triple(reply.errors[0])
        assert reply.values[0] is not None
        value = reply.values[0][0]
        return None if value is None else shape.codec.decode_row(encoded, value, route.seed)


class QuickUpserts:
    """Of one table. They are a client of their own, with one request under way at a time.

    `resend(route, batch, deadline_s, tries)` brings a request that was sent already to its end, the ordinary way.
    """

    def __init__(
        self,
        network: Any,
        table: TableRoutes,
        ids: Ids,
        resend: Callable[[Route, bytes, float, Tries], Written],
    ) -> None:
        self._network: Blocking | None = network if hasattr(network, "call_blocking") else None
        self._table = table
        self._ids = ids
        self._resend = resend
        self._gate = threading.Lock()

    def upsert(self, row: Mapping[str, Any], deadline_s: float) -> Any:
        """Written, or MISS if nothing was sent and it must go the ordinary way."""
        network, table = self._network, self._table
        if network is None or not self._gate.acquire(blocking=False):
            return MISS
        try:
            shape = table.shape
            key = shape.codec.encode_key(row)
            route = table.routes[shape.partitioner.assign_row(row, key)]
            if not route.running or not network.known(route.target):
                return MISS
            value = shape.codec.encode_row(row, route.seed)[1]
            number = self._ids.take()  # everything before it has been answered, or given up for good
            request = WriteId(self._ids.client, number)
            batch = encode_batch(shape.version, request, number, UPSERT, (), [key], [value])
            return self._send(network, route, batch, deadline_s)
        finally:
            self._gate.release()

    def _send(self, network: Blocking, route: Route, batch: bytes, deadline_s: float) -> Written:
        start = time.monotonic()
        try_s = min(deadline_s, ATTEMPT_S)
        request = WriteRequest((TabletWrite(route.tablet, batch),), try_s)
        try:
            reply: WriteReply = network.call_blocking(
                route.target, "write", request, WriteReply, try_s + ATTEMPT_GRACE_S
            )
            if reply.errors[0] is None:
                return Written(1)
            error = from_triple(reply.errors[0])
        except EblaError as failure:
            error = failure
        if not retriable(error):
            raise error
        tries = Tries()
        tries.failed(error)
        return self._resend(route, batch, max(0.001, deadline_s - (time.monotonic() - start)), tries)
