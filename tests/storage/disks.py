"""Real disks for tests, and decorators that turn a coroutine into a test: a scenario on a disk, or in a loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ebla.chaos.simulation import loop
from ebla.storage.directories import instance
from ebla.storage.environment import Put
from ebla.storage.lmdb import files
from ebla.storage.lmdb.disk import LmdbDisk

RECORD = [Put("t", [(b"k", b"v")])]

Scenario = Callable[..., Coroutine[Any, Any, Any]]
Test = Callable[..., Any]


@asynccontextmanager
async def opened(root: Path, *data_dirs: Path, uuid: str = "one", **options: Any) -> AsyncIterator[LmdbDisk]:
    """A new incarnation of a disk."""
    disk = LmdbDisk(root, data_dirs, **options)
    await disk.open_instance(uuid)
    try:
        yield disk
    finally:
        await disk.close()


async def make(root: Path, *paths: str, data_dirs: tuple[Path, ...] = ()) -> None:
    """Make environments with one record each."""
    async with opened(root, *data_dirs) as disk:
        for path in paths:
            await (await disk.open_environment(path, ["t"], create=True)).commit(RECORD)


async def reopen(root: Path, path: str, data_dirs: tuple[Path, ...] = ()) -> bytes | None:
    """Return the record's value in a new incarnation."""
    async with opened(root, *data_dirs) as disk:
        return (await disk.open_environment(path, ["t"], create=False)).get("t", b"k")


def on_disk(root: Path, scenario: Scenario, **options: Any) -> Any:
    """Run the scenario on a new incarnation."""

    async def main() -> Any:
        async with opened(root, **options) as disk:
            return await scenario(disk)

    return asyncio.run(main())


class PowerCut(BaseException):
    """No code of ebla handles this exception."""


def cut_before(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """End the process before its change of names with this number; syncs of directories count as changes."""
    left = [number]

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise PowerCut
            return act(*arguments, **options)

        return counting

    for verb in ("rename", "mkdir", "unlink", "symlink"):
        monkeypatch.setattr(os, verb, counted(getattr(os, verb)))
    for module in (instance, files):
        monkeypatch.setattr(module, "sync_path", counted(instance.sync_path))


def given_by(drive: Callable[..., Any], *needs: str, count: int = 1) -> Callable[[Scenario], Test]:
    """Turn a scenario into a test. `drive` gets a callable and the fixtures `needs`; it calls the callable with the
    first `count` arguments of the scenario. All other arguments are fixtures or parameters."""

    def decorate(scenario: Scenario) -> Test:
        own = list(inspect.signature(scenario).parameters.values())[count:]
        known = {parameter.name: None for parameter in own}
        more = [
            inspect.Parameter(need, inspect.Parameter.KEYWORD_ONLY) for need in needs if need not in known
        ]
        signature = inspect.Signature([*own, *more])

        @functools.wraps(scenario)
        def test(*positional: Any, **named: Any) -> Any:
            given = signature.bind(*positional, **named).arguments
            rest = {name: given[name] for name in known}
            return drive(lambda *first: scenario(*first, **rest), *(given[need] for need in needs))

        test.__signature__ = signature  # type: ignore[attr-defined]
        return test

    return decorate


on_one_disk = given_by(lambda scenario, root: on_disk(root, scenario), "tmp_path")
in_loop = given_by(lambda scenario: asyncio.run(scenario()), count=0)
in_simulation = given_by(lambda scenario: loop.run(scenario(), seed=1), count=0)
