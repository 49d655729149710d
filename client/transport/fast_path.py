"""A single get or upsert in its caller's own thread, while no other call of the table is under way: this saves two changes of
thread.

Only the first attempt uses this path. If another call of the table is under way, the tablet's server is not known, or the
attempt is refused or gets no answer, the router takes over: it sends calls of many threads together and follows
refusals. A get may be sent twice, since it changes nothing. An upsert that was sent is repeated as the same request, bytes
and id, so it is applied once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from ebla.actors.asking.certainty import Tries
from ebla.actors.asking.retries import retriable
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
from ebla.transport.routes import Route, TableRoutes

TRY_S = 1.0  # then the router takes over
MISS: Any = object()


class Blocking(Protocol):
    """A network whose calls may block a thread: the Ray network has these methods, the simulated network does not."""

    def known(self, address: str) -> bool: ...

    def call_blocking(
        self, address: str, method: str, message: msgspec.Struct, reply: type[Any], timeout_s: float
    ) -> Any: ...


class FastGets:
    """Gets from one table."""

    def __init__(self, network: Any, table: TableRoutes) -> None:
        self._network: Blocking | None = network if hasattr(network, "call_blocking") else None
        self._table = table
        self._gate = threading.Lock()

    def get(self, key: Mapping[str, Any], deadline_s: float) -> tuple[Any, float]:
        """The row, None, or MISS if the router must do it; and the remaining time."""
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
        table, codec = self._table, self._table.codec
        encoded = codec.keys.encode_key(key)
        route = table.routes[codec.partitioner.assign_row(key, encoded)]
        target = route.target
        if not route.running or not network.known(target):
            return MISS
        request = ReadRequest(codec.version, (TabletKeys(route.tablet, [encoded]),))
        reply: ReadReply = network.call_blocking(target, "read", request, ReadReply, timeout_s)
        if reply.errors[0] is not None:
            raise from_triple(reply.errors[0])
        assert reply.values[0] is not None
        value = reply.values[0][0]
        return None if value is None else codec.rows.decode_row(encoded, value, route.seed)


class FastUpserts:
    """Upserts into one table, with a client id of their own and one request under way at a time.

    `resend(route, batch, deadline_s, tries)` has the router repeat a request that was sent.
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
        """Written, or MISS if nothing was sent and the router must do it."""
        network, table = self._network, self._table
        if network is None or not self._gate.acquire(blocking=False):
            return MISS
        try:
            codec = table.codec
            key = codec.rows.encode_key(row)
            route = table.routes[codec.partitioner.assign_row(row, key)]
            if not route.running or not network.known(route.target):
                return MISS
            value = codec.rows.encode_row(row, route.seed)[1]
            number = self._ids.take()  # all earlier requests are answered, or given up for good
            request = WriteId(self._ids.client, number)
            batch = encode_batch(codec.version, request, number, UPSERT, (), [key], [value])
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
