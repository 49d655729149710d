"""The result of a call that opens something: `await` it, or open and close it with `async with`."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from typing_extensions import Self


class Closing(Protocol):
    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exception: object) -> None: ...


T = TypeVar("T", bound=Closing)
REMEDY = "`await` it, or use it with `async with`"


class Opening(Coroutine[Any, Any, T]):
    """A coroutine that is an async context manager as well.

    db = await ebla.aio.connect()
    async with ebla.aio.connect() as db: ...
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._opened: T | None = None

    async def __aenter__(self) -> T:
        self._opened = await self._coroutine
        return await self._opened.__aenter__()

    async def __aexit__(self, *exception: object) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(*exception)

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __repr__(self) -> str:
        call = getattr(self._coroutine, "__qualname__", "open").removesuffix(".<locals>.opened")
        return f"<ebla.aio {call}(): {REMEDY}>"

    if not TYPE_CHECKING:  # a type checker refuses other names by itself

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"no attribute {name!r} before it is open: {REMEDY}")
