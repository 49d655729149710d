"""Digests of many tablets with one call (serving/checksums.py)."""

from __future__ import annotations

from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.serving import checksums
from tests.tablet.harness import HOSTS, Group, row, simulated

ABSENT = "f" * 32


async def filled(group: Group, count: int) -> list[str]:
    """Tablets with another number of rows each, led by one server, and their digests differ."""
    tablets = await group.create_many(count)
    for number, tablet in enumerate(tablets, 1):
        await group.upsert(*[row(key) for key in range(number)], tablet=tablet)
    return tablets


async def begin(group: Group, host: str, tablets: list[str]) -> dict[str, int | Exception]:
    request = m.ChecksumStart(tuple(tablets))
    reply = await group.ask(host, "checksum_start", request, m.ChecksumStarted)
    return dict(zip(tablets, errors.outcomes(reply.indexes, reply.errors), strict=True))


async def compare(group: Group, host: str, checkpoints: dict[str, Any], timeout_s: float = 4.0) -> list[Any]:
    query = m.ChecksumQuery(tuple(checkpoints.items()), timeout_s)
    reply = await group.ask(host, "checksum", query, m.ChecksumReply)
    return errors.outcomes(reply.digests, reply.errors)


async def led(group: Group, tablets: list[str]) -> tuple[str, list[str], list[str]]:
    """A server that leads some of them, those, and the others."""
    leaders = {tablet: await group.leader(tablet) for tablet in tablets}
    host = leaders[tablets[0]]
    return host, [t for t in tablets if leaders[t] == host], [t for t in tablets if leaders[t] != host]


@simulated()
async def test_one_call_begins_checkpoints_and_one_brings_the_digests_of_a_server(group: Group) -> None:
    tablets = await filled(group, 6)
    host, here, elsewhere = await led(group, tablets)
    begun = await begin(group, host, [*here, *elsewhere, ABSENT])
    assert all(isinstance(begun[tablet], int) for tablet in here)
    assert all(isinstance(begun[tablet], errors.NotLeader) for tablet in elsewhere)
    assert isinstance(begun[ABSENT], errors.TabletNotFound)
    checkpoints = {tablet: begun[tablet] for tablet in here}
    found = [await compare(group, each, checkpoints) for each in HOSTS]
    assert found[0] == found[1] == found[2]
    assert [digest.rows for digest in found[0]] == [tablets.index(tablet) + 1 for tablet in here]


@simulated()
async def test_a_call_answers_with_the_digests_that_are_ready_in_time(group: Group) -> None:
    host, here, _ = await led(group, await filled(group, 6))
    begun = await begin(group, host, here)
    later = {here[0]: begun[here[0]] + 1, **{tablet: begun[tablet] for tablet in here[1:]}, ABSENT: 1}
    late, *ready, absent = await compare(group, host, later, timeout_s=0.5)
    assert isinstance(late, errors.Unavailable) and isinstance(absent, errors.TabletNotFound)
    assert all(isinstance(digest, m.Digest) for digest in ready)


@simulated()
async def test_a_server_begins_no_more_checkpoints_than_its_disks_have_room_for(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, here, _ = await led(group, await filled(group, 12))
    on_disks(group, host, {tablet: "one" if tablet in here[:4] else "other" for tablet in here})
    sizes = [group.replica(host, tablet).size_bytes for tablet in here]
    monkeypatch.setattr(checksums, "BEGIN_BYTES", sum(sizes[:2]))
    run = group.replica(host, here[0]).store.environment.run

    async def slowly(work: Any, *arguments: Any) -> Any:
        await group.sleep(3.0)
        return await run(work, *arguments)

    for tablet in here[:2]:
        environment: Any = group.replica(host, tablet).store.environment
        environment.run = slowly
    begun = await begin(group, host, here)
    assert [isinstance(begun[tablet], int) for tablet in here[:4]] == [True, True, False, False]
    assert isinstance(begun[here[4]], int), "the other disk has room"
    await group.settle()
    again = await begin(group, host, here[2:4])
    assert all(isinstance(each, errors.Throttled) for each in again.values()), "those before are not read yet"
    await group.sleep(6.0)
    monkeypatch.setattr(checksums, "BEGIN_BYTES", 1)
    begun = await begin(group, host, here[2:4])
    assert [isinstance(each, int) for each in begun.values()] == [True, False], "a large one is begun alone"


def on_disks(group: Group, host: str, places: dict[str, str]) -> None:
    """Let the server find each of these tablets on a disk, by name."""
    by_path = {group.replica(host, tablet).store.environment.path: place for tablet, place in places.items()}
    disk: Any = group.server(host).world.disk
    place_of = disk.place_of
    disk.place_of = lambda path: by_path.get(path) or place_of(path)


@simulated()
async def test_a_disk_makes_few_digests_at_the_same_time(group: Group) -> None:
    host, here, _ = await led(group, await filled(group, 12))
    on_disks(group, host, dict.fromkeys(here, "disk"))
    running, most = 0, 0
    for tablet in here:
        environment: Any = group.replica(host, tablet).store.environment

        async def slowly(work: Any, *arguments: Any, run: Any = environment.run) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await group.sleep(0.1)
            running -= 1
            return await run(work, *arguments)

        environment.run = slowly
    begun = await begin(group, host, here)
    found = await compare(group, host, begun)
    assert all(isinstance(digest, m.Digest) for digest in found)
    assert most == checksums.DIGESTS_MAX < len(here)


@simulated()
async def test_a_disk_that_hangs_holds_up_its_digests_and_no_others(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, here, _ = await led(group, await filled(group, 15))
    hung = here[: checksums.DIGESTS_MAX + 1]
    on_disks(group, host, {tablet: "hung" if tablet in hung else "well" for tablet in here})

    async def hang(*arguments: Any) -> Any:
        await group.sleep(3600.0)

    for tablet in hung:
        environment: Any = group.replica(host, tablet).store.environment
        environment.run = hang
    begun = await begin(group, host, here)
    found = dict(zip(here, await compare(group, host, begun), strict=True))
    assert len(here) > len(hung)
    assert all(isinstance(found[tablet], errors.AlreadyInProgress) == (tablet in hung) for tablet in here)
    monkeypatch.setattr(checksums, "KEPT_MAX", 4)
    for _ in range(5):
        await begin(group, host, here)
    await group.settle()
    waiting = group.server(host).checksums._waiting
    assert sum(map(len, waiting.values())) <= 4, "dropped ones wait no longer"


@simulated()
async def test_a_digest_that_was_dropped_for_newer_ones_is_refused(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums, "KEPT_MAX", 2)
    (tablet,) = await filled(group, 1)
    host = await group.leader(tablet)
    first = await begin(group, host, [tablet])
    assert isinstance((await compare(group, host, first))[0], m.Digest)
    for _ in range(2):
        assert isinstance((await compare(group, host, await begin(group, host, [tablet])))[0], m.Digest)
    (dropped,) = await compare(group, host, first)
    assert isinstance(dropped, errors.InvalidArgument) and "make a new one" in str(dropped)


@simulated()
async def test_a_replica_that_applies_a_checkpoint_again_is_digested_again(group: Group) -> None:
    """As after a copy, with the log of which it was applied before."""
    (tablet,) = await filled(group, 1)
    host = await group.leader(tablet)
    server, replica = group.server(host), group.replica(host, tablet)
    begun = await begin(group, host, [tablet])
    (first,) = await compare(group, host, begun)
    for _ in range(2):
        server.checksums.applied(replica, replica.store.snapshot())
    assert replica.store.applied.index == begun[tablet]
    (second,) = await compare(group, host, begun)
    assert first == second
    await group.settle()
    assert not any(server.checksums._waiting.values()) and not any(server.checksums._sizes.values())
