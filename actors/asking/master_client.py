"""Asks the active master. It needs no disk, so it serves an application on Ray, a role, and both in simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from ebla.actors.asking.certainty import Tries
from ebla.actors.asking.retries import backoff_s, retriable, same
from ebla.actors.errors import NetworkError, NotActive, NotRunning, TimedOut, Unavailable
from ebla.actors.world import CallerWorld, encode, new_id
from ebla.storage.errors import EblaError, InvalidArgument

Reply = TypeVar("Reply")
OnRefusal = Callable[[EblaError, float, float], None]

# An attempt is short, so that a silent master costs little; the request is sent again with the same id.
ATTEMPT_S = 5.0
ATTEMPT_OF_SEVERAL_S = 0.8  # another master may be active
# While a cluster is starting, or a master has just taken over and waits for heartbeats; later Unavailable is final.
UNAVAILABLE_GRACE_S = 3.0
REQUEST_ID = "request_id"  # of messages that change something


class MasterClient:
    """Asks the active one of the masters at `addresses`; `address` is the one to ask now.

    `deployment` is the deployment's name, for messages only. `on_refusal` is called for each failed attempt of a request that
    is repeated: with the error, the passed and the allowed seconds. `closed`: the error of all later requests, once closed.
    """

    def __init__(
        self,
        world: CallerWorld,
        addresses: Sequence[str],
        deployment: str = "ebla",
        on_refusal: OnRefusal | None = None,
    ) -> None:
        self.world = world
        self.addresses = tuple(addresses)
        self.address = self.addresses[0]
        self.deployment = deployment
        self.on_refusal = on_refusal
        self.closed: EblaError | None = None

    def new_request_id(self) -> str:
        return new_id(self.world.random)

    async def ask(
        self,
        method: str,
        message: msgspec.Struct,
        reply: type[Reply],
        *,
        deadline_s: float,
        patience_s: float = 0.0,
        tries: Tries | None = None,
    ) -> Reply:
        """Repeat the same message until a master answers. `patience_s`: the time for which the message asks the master to wait
        before it answers. `tries`: the earlier attempts of a request without a request id."""
        self.check_open()
        _check_sendable(method, message)
        clock = self.world.clock
        began = clock.monotonic()
        failures = 0
        unavailable_since: float | None = None
        if tries is None and REQUEST_ID in message.__struct_fields__:
            tries = Tries()
        while True:
            left_s = began + deadline_s - clock.monotonic()
            try:
                return await self.ask_once(method, message, reply, min(left_s, ATTEMPT_S), patience_s)
            except EblaError as error:
                outcome = error if tries is None else tries.outcome(error)
                if tries is not None:
                    tries.failed(error)
                if not retriable(error):
                    raise outcome from error.__cause__
                now = clock.monotonic()
                passed_s = now - began
                if not isinstance(error, Unavailable):
                    unavailable_since = None
                elif unavailable_since is None:
                    unavailable_since = now
                elif now - unavailable_since >= UNAVAILABLE_GRACE_S:
                    raise outcome from error.__cause__
                failures += 1
                pause_s = backoff_s(failures, self.world.random)
                if passed_s + pause_s >= deadline_s:
                    if isinstance(error, Unavailable):
                        raise outcome from error.__cause__
                    raise self._no_answer(method, deadline_s, error) from error
                if self.on_refusal is not None:
                    self.on_refusal(error, passed_s, deadline_s)
            await clock.sleep(pause_s)
            self.check_open()

    async def ask_once(
        self,
        method: str,
        message: msgspec.Struct,
        reply: type[Reply],
        timeout_s: float = ATTEMPT_S,
        patience_s: float = 0.0,
    ) -> Reply:
        """One attempt. If the master is not active, or silent, the next attempt goes to another."""
        address = self.address
        if len(self.addresses) > 1:
            timeout_s = min(timeout_s, ATTEMPT_OF_SEVERAL_S)
        try:
            return await self.world.network.call(
                address, method, message, reply, max(0.01, timeout_s) + patience_s
            )
        except (NetworkError, NotActive, NotRunning) as error:
            if address == self.address:  # no other request has changed it meanwhile
                self.address = self._next_to(address, error)
            raise

    def _next_to(self, address: str, error: EblaError) -> str:
        if isinstance(error, NotActive) and error.active in self.addresses:
            return error.active
        return self.addresses[(self.addresses.index(address) + 1) % len(self.addresses)]

    def _no_answer(self, method: str, deadline_s: float, error: EblaError) -> TimedOut:
        return TimedOut(
            f"{self.address} of deployment {self.deployment!r} gave no answer to {method} within {deadline_s:g} s; last: "
            f"{type(error).__name__}: {error}"
            + ("; see `ebla status`" if isinstance(error, NetworkError) else ""),
            deadline_s=deadline_s,
        )

    def check_open(self) -> None:
        if self.closed is not None:
            raise same(self.closed)

    def close(self, error: EblaError) -> None:
        """Requests under way raise `error` instead of being repeated, and later ones at once. Only the first call counts."""
        if self.closed is None:
            self.closed = error


def _check_sendable(method: str, message: msgspec.Struct) -> None:
    """Refuse a message that cannot be encoded or decoded: it ends this call only."""
    try:
        msgspec.msgpack.decode(encode(message), type=type(message))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidArgument(f"this {method} cannot be sent: {error}; change its arguments") from error
