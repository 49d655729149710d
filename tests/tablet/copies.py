"""Deletes replicas and copies them back, with the requests that a leader sends; for tests of both ends of a copy."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ebla.actors import messages as m
from ebla.actors.replication.configuration import Peer
from ebla.actors.tablet.copy.copies import Copies
from ebla.actors.tablet.copy.job import Job
from ebla.storage.errors import EblaError
from tests.tablet.harness import TABLET, Group, address, row


async def entomb(group: Group, host: str, tablet: str = TABLET) -> None:
    """Make the replica a tombstone, as if the group had removed it."""
    server = group.server(host)
    async with server.lifecycle.transition(tablet):
        await server.deletion.entomb(tablet, "for a test")


def request(group: Group, host: str, source: str, **changes: Any) -> m.StartCopyRequest:
    """The leader's request for a copy, with `changes`."""
    server = group.server(host)
    tablet = changes.pop("tablet", TABLET)
    replica = group.server(source).replicas.get(tablet)
    fields: dict[str, Any] = {
        "dest_uuid": server.instance.uuid,
        "tablet": tablet,
        "source": Peer(group.uuid(source), address(source)),
        "term": replica.core.term if replica else 1,
        "state": server.lifecycle.state_of(tablet),
    }
    return m.StartCopyRequest(**{**fields, **changes})


async def start(group: Group, host: str, source: str, **changes: Any) -> None:
    await group.ask(host, "start_copy", request(group, host, source, **changes), m.Empty, 12.0)


async def until(group: Group, holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    for _ in range(int(seconds / 0.02)):
        if holds():
            return
        await group.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def before_ready(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[Copies, Job], Coroutine[Any, Any, None]]
) -> None:
    """Let `act` run when all data of a copy has arrived, before the copy becomes a replica."""
    original = Copies._ready

    async def ready(self: Copies, job: Job) -> None:
        await act(self, job)
        await original(self, job)

    monkeypatch.setattr(Copies, "_ready", ready)


async def ended(group: Group, host: str) -> None:
    await until(group, lambda: not group.server(host).copies.jobs, "the copy ends")


async def copied(group: Group, host: str, source: str, **changes: Any) -> None:
    """Start a copy and wait until it is done; repeat the request as a leader does."""
    for _ in range(20):
        try:
            await start(group, host, source, **changes)
        except EblaError as error:
            if not error.retriable and not error.possibly_applied:
                raise
        await ended(group, host)
        if group.server(host).lifecycle.state_of(changes.get("tablet", TABLET)) == m.RUNNING:
            return
        await group.sleep(0.3)
    raise AssertionError("no copy succeeded")


async def quarantined(group: Group, host: str) -> tuple[m.QuarantineEntry, ...]:
    return (await group.ask(host, "quarantine_list", m.Empty(), m.QuarantineEntries)).entries


async def fill(group: Group, rows: int, at_once: int = 200) -> None:
    for first in range(0, rows, at_once):
        await group.upsert(*[row(k, "x" * 100) for k in range(first, min(rows, first + at_once))])


async def filled(group: Group, rows: int) -> tuple[str, str, str]:
    """Write rows; return the leader and both followers."""
    leader, target, other = await group.roles()
    await fill(group, rows)
    return leader, target, other


async def deleted(group: Group, rows: int) -> tuple[str, str, str]:
    """Write rows; return the leader, a follower that became a tombstone, and the other follower."""
    leader, target, other = await filled(group, rows)
    await entomb(group, target)
    return leader, target, other


async def copying(group: Group, rows: int) -> tuple[str, str, str]:
    """Return the leader, a follower that became a tombstone and is being copied to, and the other follower."""
    leader, target, other = await deleted(group, rows)
    await start(group, target, leader)
    return leader, target, other


async def one_down(group: Group) -> tuple[str, str, str]:
    """Return the leader, a follower that is down and had all entries until then, and the other follower."""
    leader, target, other = await filled(group, 100)
    await group.settle()
    group.crash(target)
    return leader, target, other


async def left_behind(group: Group) -> tuple[str, str, str]:
    """Return the leader, a follower that was down until the leader's log became too short for it, and the other follower.
    The tests that use it set short logs."""
    leader, target, other = await one_down(group)
    await fill(group, 600, at_once=50)
    await group.flush(leader, other)
    await until(group, lambda: group.replica(leader).log.dropped.index > 3, "the log is trimmed")
    await group.restart(target)
    return leader, target, other


async def same_rows(group: Group, *hosts: str) -> None:
    """Check that all hosts hold the same rows, and at least one."""
    await group.settle()
    tables = [(await group.scan(host)).sort_by("k") for host in hosts]
    assert tables[0].num_rows > 0
    assert all(table.equals(tables[0]) for table in tables[1:])
