"""The disk in memory gives the same answers as the real one, so that results of simulation are valid for LMDB.

Random sequences of commits, reads, snapshots, restarts and crashes run on both, and every answer is compared.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ebla.chaos.simulation.disk import MemoryDisk
from ebla.chaos.simulation.loop import SimulatedLoop
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.environment import Delete, DeleteRange, Put
from ebla.storage.errors import Damaged, EblaError, OldCopy, SnapshotExpired, StorageError
from ebla.storage.lmdb.disk import LmdbDisk

PATH, OTHER, MOVING = "wals/shared", "elsewhere/other", "data/moving"
DATABASES = ("t", "u")

keys = st.binary(min_size=1, max_size=2).map(lambda key: bytes(byte % 4 for byte in key))
read_keys = st.one_of(keys, keys, st.sampled_from([b"", b"k" * 511, b"k" * 512]))
values = st.one_of(st.binary(max_size=8), st.sampled_from([0, 3000, 40_000]).map(bytes))
databases = st.sampled_from(DATABASES)
items = st.lists(st.tuples(keys, values), min_size=1, max_size=8)
bounds = st.tuples(st.one_of(st.just(b""), keys), st.one_of(st.none(), keys))
puts = st.builds(Put, databases, items, st.booleans())  # also wrong promises of sorted keys
changes = st.one_of(
    puts,
    puts,
    st.builds(Put, databases, items.map(sorted), st.just(True)),
    st.builds(Delete, databases, st.lists(read_keys, max_size=4)),
    st.builds(lambda database, bound: DeleteRange(database, *bound), databases, bounds),
)
refused = st.sampled_from(
    [
        Put("t", [(b"", b"")]),
        Put("t", [(b"k" * 512, b"")]),
        Delete("unknown", []),
        DeleteRange("unknown", b"", None),
    ]
)
batches = st.one_of(*[st.lists(changes, max_size=4)] * 5, st.tuples(changes, refused))


def new_place() -> Path:
    """Return a directory, in memory if possible: the test compares answers, not what a power cut leaves."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="ebla-twin-", dir=memory if memory.is_dir() else None))


class Side:
    """One of the two disks, with its loop and its open environment."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.snapshots: list[Any] = []

    def open(self, make_disk: Any) -> tuple[str, int, bool]:
        async def opening():
            self.disk = make_disk()
            instance = await self.disk.open_instance("one")
            self.environment = await self.disk.open_environment(
                PATH, DATABASES, create=True, map_bytes=1 << 17
            )
            return instance

        self.snapshots = []
        return self.loop.run_until_complete(opening())

    def commit(self, group: list[Any]) -> list[type]:
        async def committing():
            commits = (self.environment.commit(batch) for batch in group)
            return [type(end) for end in await asyncio.gather(*commits, return_exceptions=True)]

        return self.loop.run_until_complete(committing())

    def read(self, reader: Any, verb: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(reader, verb)(*arguments, **options)
        except EblaError as error:
            return type(error)

    def close(self) -> None:
        self.loop.run_until_complete(self.disk.close())


class Twins(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.real, self.memory = Side(asyncio.new_event_loop()), Side(SimulatedLoop(1))
        self.places = [new_place()]
        self.state = DurableState()
        self.open()

    def open(self) -> None:
        assert self.real.open(self.make_real) == self.memory.open(self.make_memory)

    def make_real(self) -> LmdbDisk:
        return LmdbDisk(self.places[-1], growth_grace_s=0.0)

    def make_memory(self) -> MemoryDisk:
        return MemoryDisk(self.state, random.Random(1))

    def both(self, verb: str, *arguments: Any, **options: Any) -> None:
        answers = [
            side.read(side.environment, verb, *arguments, **options) for side in (self.real, self.memory)
        ]
        assert answers[0] == answers[1], (verb, arguments, options)

    @rule(group=st.lists(batches, min_size=1, max_size=3))
    def commit(self, group: list[Any]) -> None:
        assert self.real.commit(group) == self.memory.commit(group)

    @rule(database=databases, key=read_keys, more=st.lists(read_keys, max_size=5))
    def get(self, database: str, key: bytes, more: list[bytes]) -> None:
        self.both("get", database, key)
        self.both("get_many", database, more)
        self.both("around", database, more)

    @rule(database=databases, several=st.lists(bounds, min_size=3, max_size=6), limit=st.integers(1, 4))
    def ranges(self, database: str, several: list[tuple[bytes, bytes | None]], limit: int) -> None:
        for bound in several:
            self.both("items", database, *bound)
            self.both("items", database, *bound, limit=limit)
            self.both("keys", database, *bound)
            self.both("keys", database, *bound, limit=limit)
            self.both("joined", database, *bound, limit=limit)
            self.both("last", database, bound[1])

    @rule()
    def unmap(self) -> None:
        for side in (self.real, self.memory):
            side.loop.call_soon(side.environment.unmap)
            side.commit([[]])

    @rule()
    def pin(self) -> None:
        for side in (self.real, self.memory):
            side.snapshots.append(side.environment.snapshot())

    @precondition(lambda self: self.real.snapshots)
    @rule(data=st.data(), database=databases, bound=bounds)
    def read_a_snapshot(self, data: Any, database: str, bound: tuple[bytes, bytes | None]) -> None:
        which = data.draw(st.integers(0, len(self.real.snapshots) - 1))
        real, memory = (
            [
                side.read(side.snapshots[which], verb, database, *arguments)
                for verb, arguments in (("items", bound), ("count", ()), ("last", ()))
            ]
            for side in (self.real, self.memory)
        )
        assert real == memory or real == [SnapshotExpired] * 3  # the map has grown, and there was no grace

    @precondition(lambda self: self.real.snapshots)
    @rule()
    def close_a_snapshot(self) -> None:
        for side in (self.real, self.memory):
            snapshot = side.snapshots.pop(0)
            snapshot.close()
            assert side.read(snapshot, "count", "t") is SnapshotExpired

    @rule()
    def make_list_and_remove_another(self) -> None:
        for side in (self.real, self.memory):

            async def life(disk: Any = side.disk) -> None:
                other = await disk.open_environment(OTHER, ["t"], create=True)
                assert disk.list("elsewhere") == ["other"] and disk.exists(OTHER)
                assert not disk.exists("elsewhere")
                await other.close()
                await disk.remove(OTHER)
                assert disk.list("elsewhere") == [] and not disk.exists(OTHER)

            side.loop.run_until_complete(life())

    @rule(
        steps=st.lists(
            st.tuples(st.sampled_from(["make", "move", "move", "read", "purge"]), st.sampled_from("pq")),
            min_size=1,
            max_size=5,
        ),
    )
    def set_aside(self, steps: list[tuple[str, str]]) -> None:
        """Move an environment away and make it again under the old name; restarts and crashes come between."""

        async def act(disk: Any, verb: str, name: str) -> Any:
            away = f"quarantine/{name}/data"
            if verb == "move":
                await disk.move(MOVING, away)
            elif verb == "purge":
                await disk.remove(away)
            elif verb == "make":
                made = await disk.open_environment(MOVING, ["t"], create=True)
                await made.reserve(1 << 20)
                await made.commit(
                    [Put("t", [(b"n", bytes([made.count("t")])), (b"%d" % made.count("t"), b"")])]
                )
                with pytest.raises(EblaError, match="is open; close it before moving it"):
                    await disk.move(MOVING, away)
                await made.close()
            else:
                opened = await disk.open_environment(away, ["t"], create=False)
                found = opened.items("t")
                await opened.close()
                return found
            there = [disk.exists(path) for path in (away, MOVING)]
            return there, disk.list(f"quarantine/{name}"), disk.list("data"), disk.directories("quarantine")

        for step in steps:
            answers = []
            for side in (self.real, self.memory):
                try:
                    answers.append(side.loop.run_until_complete(act(side.disk, *step)))
                except EblaError as error:
                    answers.append(type(error))
            assert answers[0] == answers[1], step

    @rule(
        later=batches,
        end=st.sampled_from(["finish", "finish", "finish", "abort", "cut off", "want another", "close"]),
        size=st.sampled_from([5000, 1 << 20]),
    )
    def copy_to_another_disk(self, later: Any, end: str, size: int) -> None:
        """Copy an environment: commits before the stream arrive, and no later ones."""

        async def copy(side: Side) -> Any:
            stream = await side.environment.stream()
            expected = [side.environment.items(database) for database in DATABASES]
            await asyncio.gather(side.environment.commit(later), return_exceptions=True)
            pieces = []
            while piece := await stream.read(size):
                pieces.append(piece)
            assert await stream.read(size) == b""
            stream.close()
            with pytest.raises(SnapshotExpired):
                await stream.read(size)
            place = new_place()
            other = LmdbDisk(place) if side is self.real else MemoryDisk(DurableState(), random.Random(2))
            try:
                await other.open_instance("another")
                return await arrive(other, pieces, expected)
            finally:
                await other.close()
                shutil.rmtree(place)

        async def arrive(disk: Any, pieces: list[bytes], expected: list[Any]) -> Any:
            receiver = await disk.receive(PATH)
            for use in (
                disk.receive(PATH),
                disk.open_environment(PATH, DATABASES, create=True),
                disk.remove(PATH),
            ):
                with pytest.raises(StorageError, match="is open"):
                    await use
            for piece in pieces[:-1] if end == "cut off" else pieces:
                await receiver.write(piece)
            assert not disk.exists(PATH) and disk.list("wals") == []
            if end == "close":
                return None
            if end == "abort":
                await receiver.abort()
            elif end == "finish":
                await receiver.finish(DATABASES)
            else:
                with pytest.raises(Damaged):
                    await receiver.finish(["another"] if end == "want another" else DATABASES)
            await receiver.abort()
            with pytest.raises(StorageError, match="is closed"):
                await receiver.write(b"")
            if end == "finish":
                with pytest.raises(StorageError, match="exists"):
                    await disk.receive(PATH)
            made = await disk.open_environment(PATH, DATABASES, create=end != "finish")
            found = [made.items(database) for database in DATABASES]
            assert found == (expected if end == "finish" else [[], []])
            await made.commit([Put("t", [(b"n", b"")])])
            await made.close()
            return found

        real, memory = (side.loop.run_until_complete(copy(side)) for side in (self.real, self.memory))
        assert real == memory

    @rule(by=st.integers(1, 1000))
    def raise_the_number(self, by: int) -> None:
        """Raise the number; the next start shows whether it is durable."""
        real, memory = (
            side.loop.run_until_complete(side.disk.raise_seqno(by)) for side in (self.real, self.memory)
        )
        assert real == memory

    @rule()
    def give_up_and_set_aside(self) -> None:
        for side in (self.real, self.memory):
            assert side.loop.run_until_complete(side.disk.give_up("it is an old copy"))
            side.close()
        for side, make in ((self.real, self.make_real), (self.memory, self.make_memory)):
            with pytest.raises(OldCopy, match=r"^it is an old copy .*was given up"):
                side.open(make)
        self.places.append(new_place())
        self.state = DurableState()
        self.open()

    @rule()
    def restart(self) -> None:
        self.real.close()
        self.memory.close()
        self.open()

    @rule()
    def crash(self) -> None:
        """Start the next incarnation on a copy of the files, as SIGKILL leaves them."""
        copy = new_place()
        shutil.copytree(self.places[-1], copy, dirs_exist_ok=True)
        self.places.append(copy)
        self.real.close()
        self.memory.disk.crash()
        self.open()

    @invariant()
    def same(self) -> None:
        for database in DATABASES:
            self.both("items", database)
            self.both("count", database)

    def teardown(self) -> None:
        for side in (self.real, self.memory):
            side.close()
            side.loop.close()
        for place in self.places:
            shutil.rmtree(place)


TestTwins = Twins.TestCase
TestTwins.settings = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
