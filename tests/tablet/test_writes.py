"""Writes to a group of three: durability, exactly once, and the answers of each kind of write."""

from __future__ import annotations

import msgspec
import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.storage.errors import DiskFull, InvalidArgument
from tests.tablet.harness import CLIENT, HOSTS, Group, address, row, simulated


@simulated()
async def test_an_acknowledged_write_survives_the_crash_of_every_server_at_once(group: Group) -> None:
    for k in range(20):
        await group.upsert(row(k, f"v{k}"))
    await group.restart_all()
    assert await group.get(*range(20)) == [row(k, f"v{k}") for k in range(20)]


@pytest.mark.parametrize("seed", range(3))
@simulated()
async def test_an_acknowledged_write_survives_the_loss_of_any_one_server_for_good(
    group: Group, seed: int
) -> None:
    await group.upsert(row(1, "kept"))
    group.crash(HOSTS[seed])
    assert await group.get(1) == [row(1, "kept")]
    await group.upsert(row(2, "later"))
    assert await group.get(1, 2) == [row(1, "kept"), row(2, "later")]


@simulated()
async def test_a_write_is_not_acknowledged_without_a_majority(group: Group) -> None:
    leader = await group.leader()
    group.crash(*await group.followers())
    error = await group.write_once(leader, group.batch(m.UPSERT, [row(1)], 1), 1.0)
    assert isinstance(error, errors.EblaError) and error.possibly_applied


@simulated()
async def test_a_retry_gets_the_first_answer_from_the_next_leader(group: Group) -> None:
    batch = group.batch(m.INSERT, [row(1), row(2)], 1)
    first = await group.write_bytes(batch)
    group.crash(await group.leader())
    again = await group.write_bytes(batch)
    assert again == first and first.rejected == ()


@simulated()
async def test_a_request_id_with_other_rows_is_refused(group: Group) -> None:
    await group.upsert(row(1, "a"), sequence=7)
    with pytest.raises(errors.RequestReused):
        await group.upsert(row(1, "b"), sequence=7)
    assert await group.get(1) == [row(1, "a")]


@simulated()
async def test_a_request_id_with_another_verb_or_other_columns_is_refused(group: Group) -> None:
    await group.upsert(row(1, "a", 5))
    await group.write(m.UPDATE, [{"k": 1, "v": None}], columns=("v",), sequence=7)
    with pytest.raises(errors.RequestReused, match="for another change of them"):
        await group.write(m.UPDATE, [{"k": 1, "n": None}], columns=("n",), sequence=7)
    await group.write(m.INSERT, [row(1, "b")], sequence=8)
    with pytest.raises(errors.RequestReused):
        await group.write(m.UPSERT, [row(1, "b")], sequence=8)
    assert await group.get(1) == [row(1, None, 5)]


@simulated()
async def test_a_request_that_its_client_gave_up_is_refused_as_stale(group: Group) -> None:
    await group.upsert(row(1, "a"), sequence=1)
    await group.upsert(row(1, "b"), sequence=2, first_incomplete=2)
    with pytest.raises(errors.StaleRequest):
        await group.upsert(row(1, "a"), sequence=1)
    assert await group.get(1) == [row(1, "b")]


@simulated()
async def test_insert_refuses_present_rows_and_applies_the_others(group: Group) -> None:
    await group.upsert(row(2, "old"))
    result = await group.write(m.INSERT, [row(1, "new"), row(2, "new"), row(3, "new"), row(3, "twice")])
    assert result.rejected == (1, 3)
    assert await group.get(1, 2, 3) == [row(1, "new"), row(2, "old"), row(3, "new")]


@simulated()
async def test_update_changes_only_the_named_columns_of_present_rows(group: Group) -> None:
    await group.upsert(row(1, "a", 10), row(2, "b", 20))
    patch = [{"k": 1, "n": 11}, {"k": 9, "n": 99}, {"k": 1, "n": 12}, {"k": 2, "n": None}]
    result = await group.write(m.UPDATE, patch, columns=("n",))
    assert result.rejected == (1,)
    assert await group.get(1, 2, 9) == [row(1, "a", 12), row(2, "b", None), None]


@simulated()
async def test_delete_refuses_absent_rows_and_deletes_the_others(group: Group) -> None:
    await group.upsert(row(1), row(2))
    result = await group.write(m.DELETE, [{"k": 1}, {"k": 5}, {"k": 1}])
    assert result.rejected == (1, 2)
    assert await group.get(1, 2) == [None, row(2)]


@simulated()
async def test_an_invalid_batch_is_refused_with_the_reason_and_changes_nothing(group: Group) -> None:
    good = group.batch(m.UPSERT, [row(1)], 1)
    other = group.batch(m.UPSERT, [row(1)], 1, tablet="f" * 32)
    for batch, reason in [
        (b"\xc1", "malformed"),
        (good[:-8], "malformed"),
        (other, "another tablet"),
        (group.batch(m.UPSERT, [], 1), "1 to"),
        (group.batch(m.UPSERT, [row(1)], 1, client=b"short"), "client must be"),
        (
            renamed(group.batch(m.UPDATE, [row(1)], 1, columns=("v", "n")), ("v", "k")),
            "cannot be updated",
        ),
        (renamed(group.batch(m.UPDATE, [row(1)], 1, columns=("v", "n")), ("w",)), "no column"),
    ]:
        with pytest.raises(InvalidArgument, match=reason):
            await group.write_bytes(batch)
    assert await group.get(1) == [None]


def renamed(batch: bytes, columns: tuple[str, ...]) -> bytes:
    decoded = msgspec.msgpack.decode(batch, type=m.RowBatch)
    return msgspec.msgpack.encode(msgspec.structs.replace(decoded, columns=columns))


@simulated(unapplied_bytes_max=20_000)
async def test_writers_are_throttled_when_rows_arrive_faster_than_the_disk_writes(group: Group) -> None:
    leader = await group.leader()
    group.disk(leader).commit_s = (5.0, 5.0)
    seen: list[errors.Throttled] = []
    for at in range(40):
        batch = group.batch(m.UPSERT, [row(at, "x" * 2000)], at + 1)
        error = await group.write_once(leader, batch, 0.01)
        if isinstance(error, errors.Throttled):
            seen.append(error)
    assert seen and seen[0].limit == "unapplied_bytes_max" and seen[0].retry_after_s > 0
    group.disk(leader).commit_s = (0.001, 0.002)
    await group.upsert(row(1, "after"), sequence=99)
    assert await group.get(1) == [row(1, "after")]


@simulated()
async def test_a_full_disk_refuses_writes_and_recovers_when_there_is_space(group: Group) -> None:
    await group.upsert(row(1, "before"))
    for host in HOSTS:
        group.disk(host).fill()
    batch = group.batch(m.UPSERT, [row(2, "during")], 50)
    leader = await group.leader()
    await group.write_once(leader, batch, 0.5)
    second = group.batch(m.UPSERT, [row(3)], 51)
    assert isinstance(await group.write_once(leader, second, 0.5), DiskFull)
    again = await group.write_once(leader, batch, 0.5)
    assert isinstance(again, errors.OutcomeUnknown), "it is in the log and may be applied"
    assert await group.get(1) == [row(1, "before")]
    for host in HOSTS:
        group.disk(host).free()
    await group.write_bytes(batch)
    assert await group.get(1, 2, 3) == [row(1, "before"), row(2, "during"), None]


@simulated()
async def test_a_failed_sync_stops_the_server_and_loses_nothing(group: Group) -> None:
    await group.upsert(row(1, "a"))
    leader = await group.leader()
    group.cluster.expect_failure(address(leader))
    group.disk(leader).fail_next_commit("wals/shared")
    await group.upsert(row(2, "b"))
    assert not group.alive(leader)
    assert await group.get(1, 2) == [row(1, "a"), row(2, "b")]


@simulated()
async def test_the_client_id_is_part_of_the_request_id(group: Group) -> None:
    await group.upsert(row(1, "mine"), sequence=1, client=CLIENT)
    await group.upsert(row(1, "theirs"), sequence=1, client=b"client-number-02")
    assert await group.get(1) == [row(1, "theirs")]
