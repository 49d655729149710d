"""`ebla log` and `ebla ledger`."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from typing import Any

import pytest

from ebla import aio
from ebla.actors.ledger.store import records
from ebla.cli.logs import records as commands
from ebla.cli.logs import stdin
from ebla.errors import LogFenced
from ebla.log.directory import path_of
from ebla.log.records import dropped
from ebla.storage.environment import DeleteRange, Put
from tests.cli.stage import Cli, LogStage, invoke, repaired, terminal


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


async def contents(stage: LogStage) -> list[bytes]:
    log = await stage.db.log("events")
    return [entry.data async for entry in log.read()]


# -- logs ----------------------------------------------------------------------------------------------------


def test_a_log_is_created_listed_described_and_deleted(stored: Cli) -> None:
    command = "log create events --ensemble 4 --retain 7d --retain-bytes 10GiB --roll-bytes 1MiB --roll 30m"
    made = stored(command)
    assert made.lines == [
        "created log events: each record on 3 of 4 stores, acknowledged when 2 have synced it"
    ]
    document = stored(f"{command} --json").json
    assert document["created"] and document["log"]["settings"] == {
        "ensemble": 4,
        "write_quorum": 3,
        "ack_quorum": 2,
        "retain_s": 7 * 86_400.0,
        "retain_bytes": 10 << 30,
        "roll_bytes": 1 << 20,
        "roll_s": 1800.0,
    }
    assert stored("log list").lines == ["no logs"]


def test_a_log_with_the_same_settings_exists_and_with_others_is_refused(logged: Cli) -> None:
    assert logged("log create events").lines == [
        "log events exists already, with these settings; nothing was changed"
    ]
    logged("log create events --ensemble 4").require(
        1, "with other settings; `ebla log describe events` shows them"
    )


def test_settings_that_cannot_be_are_usage_errors(stored: Cli) -> None:
    stored("log create events --retain often").require(2, "'often' is not a time; write 3d")
    stored("log create events --roll-bytes 3elephants").require(2, "is not a size; write 64MiB")
    stored("log create events --ensemble 2").require(2, "ensemble >= write_quorum >= ack_quorum >= 1")
    stored("log create a/b").require(2, "a log's name has 1 to 100 printable characters")
    few = stored("log create events --ensemble 5")
    few.require(0, "4 ledger stores take records, and this log needs 5 to begin a ledger; see `ebla nodes`")
    stored("log append events x", prepare=lambda stage: stage.db.create_log("events", ensemble=5)).require(
        1, "next: `ebla nodes` shows the ledger stores"
    )


def test_logs_are_listed_with_their_positions_and_whether_a_writer_has_them_open(logged: Cli) -> None:
    async def prepare(stage: LogStage) -> None:
        await stage.log()
        writer = await (await stage.db.create_log("open")).writer()
        await writer.append_many([b"x"] * 1200)

    shown = logged("log list", prepare=prepare)
    assert [line.split() for line in shown.lines] == [
        ["LOG", "FIRST", "NEXT", "RECORDS", "LEDGERS", "SIZE", "WRITER"],
        ["events", "0", "5", "5", "1", "65", "B", "none"],
        ["open", "0", "1,200", "1,200", "1", "3.5", "KiB", "open"],
    ]
    document = logged("log list --json", prepare=prepare).json
    assert [(each["name"], each["end"], each["writer"]) for each in document["logs"]] == [
        ("events", 5, "none"),
        ("open", 1200, "open"),
    ]


def test_a_description_has_settings_and_ledgers_with_their_stores(logged: Cli) -> None:
    async def prepare(stage: LogStage) -> None:
        log = await stage.log(retain_s=3600.0)
        async with log.writer() as writer:
            await writer.append(b"one more")

    shown = logged("log describe events", prepare=prepare)
    assert "each record on 3 stores, acknowledged when 2 have synced it" in shown.text
    assert "for 3,600 s" in shown.text and "none: the last writer has closed it" in shown.text
    (log,) = [logged("log describe events --json", prepare=prepare).json]
    assert [(part["first"], part["end"], part["entries"], part["state"]) for part in log["ledgers"]] == [
        (0, 5, 5, "closed"),
        (5, 6, 1, "closed"),
    ]
    assert all(len(part["addresses"]) == 3 for part in log["ledgers"])
    logged("log describe other").require(1, "there is no log 'other'; see `ebla log list`, or make it")


def test_looking_at_an_open_log_does_not_disturb_its_writer(stored: Cli) -> None:
    writers: list[aio.LogWriter] = []

    async def prepare(stage: LogStage) -> None:
        writers.append(await (await stage.db.create_log("events")).writer())
        await writers[-1].append(b"first")

    async def after(stage: LogStage) -> int:
        return await writers[-1].append(b"later")

    for command in ("log list", "log describe events", "log cat events", "log tail events", "log list"):
        assert stored(command, prepare=prepare, after=after).seen == 1
    (ledger,) = stored("ledger list --json", prepare=prepare).json["ledgers"]
    assert ledger["state"] == "open"
    for command in (f"ledger show {ledger['ledger']}", f"ledger check {ledger['ledger']}"):
        done = stored(command, prepare=prepare, after=after)
        assert (done.status, done.seen) == (0, 1)


def test_a_trim_names_the_new_first_position(logged: Cli) -> None:
    assert logged("log trim events --before 3").lines == ["log events begins at position 3"]
    logged("log trim events --before 9").require(2, "before is 9, and log 'events' ends at position 5")
    logged("log trim events").require(2, "Missing option '--before'")


def test_a_log_is_deleted_after_a_confirmation(logged: Cli) -> None:
    async def names(stage: LogStage) -> list[str]:
        return await stage.db.logs()

    refused = logged("log delete events", after=names)
    refused.require(1, "Delete log events and all its 5 records")
    assert refused.seen == ["events"]
    assert logged("log delete events", typed="n\n", after=names).seen == ["events"]
    done = logged("log delete events -y", after=names)
    assert (done.lines, done.seen) == (["deleted log events"], [])


@pytest.mark.parametrize("command", ["create", "delete"])
def test_a_deletion_that_was_interrupted_is_finished_by_another_one_or_by_making_the_log_again(
    logged: Cli, command: str
) -> None:
    async def prepare(stage: LogStage) -> None:
        await (await stage.log())._ledgers.logs.change(path_of("events"), dropped)

    async def ledgers(stage: LogStage) -> list[int]:
        return [each.ledger for each in await stage.db.ledgers()]

    done = logged(f"log {command} events", prepare=prepare, after=ledgers)
    assert done.lines[0].startswith(f"{command}d log events") and done.seen == []


# -- records -------------------------------------------------------------------------------------------------


def test_words_are_appended_as_records(logged: Cli) -> None:
    done = logged("log append events", "two words", "and more", after=contents)
    assert done.lines == ["appended 2 records at positions 5 to 6"]
    assert done.seen[5:] == [b"two words", b"and more"]
    assert logged("log append events x --json").json == {"log": "events", "first": 5, "records": 1}
    logged("log append other x").require(1, "there is no log 'other'")


def test_bytes_that_are_no_text_are_appended_as_they_are_typed(logged: Cli) -> None:
    done = logged("log append events", "\udcffa", "n\u00e4", after=contents)
    assert done.status == 0, done.err
    assert done.seen[-2:] == [b"\xffa", "n\u00e4".encode()]


def test_lines_of_standard_input_are_appended_as_records(
    logged: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(text: str) -> Any:
        def run(*words: str, **_: Any) -> Any:
            return invoke(*words, typed=text)

        monkeypatch.setattr("tests.cli.stage.invoke", run)
        return logged("log append events", after=contents)

    assert given("a\nb\n\nlast").seen[5:] == [b"a", b"b", b"", b"last"]
    nothing = given("")
    assert (nothing.status, nothing.lines) == (0, ["the input is empty; nothing was appended"])


def test_lines_are_read_as_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink = os.pipe()
    read: list[list[bytes]] = []

    async def main() -> None:
        os.write(sink, b"first\nsec")
        async for each in stdin.batches():
            read.append(each)
            if each == [b"first"]:
                os.write(sink, b"ond\n\nwithout an end")
                os.close(sink)

    with os.fdopen(source) as given:
        monkeypatch.setattr("sys.stdin", given)
        asyncio.run(main())
    assert read == [[b"first"], [b"second", b""], [b"without an end"]]


def test_an_append_fences_the_writer_before(stored: Cli) -> None:
    writers: list[aio.LogWriter] = []

    async def prepare(stage: LogStage) -> None:
        writers.append(await (await stage.db.create_log("events")).writer())
        await writers[-1].append(b"first")

    async def after(stage: LogStage) -> list[bytes]:
        with pytest.raises(LogFenced):
            await writers[-1].append(b"late")
        return await contents(stage)

    done = stored("log append events x", prepare=prepare, after=after)
    assert (done.lines, done.seen) == (["appended 1 record at position 1"], [b"first", b"x"])


def test_a_command_leaves_no_session(logged: Cli) -> None:
    async def sessions(stage: LogStage) -> list[str]:
        return sorted(each.name for each in await stage.db.coordination.sessions())

    found = logged("log append events x", prepare=lambda stage: stage.log(), after=sessions)
    assert [name for name in found.seen if not name.startswith("ledger-store/")] == ["a client's logs"]


async def mixed(stage: LogStage) -> None:
    log = await stage.db.create_log("events")
    async with log.writer() as writer:
        await writer.append_many(["tab\tand é".encode(), b"two\nlines", b"\xff\x00", b"", b'{"a": 1}'])


def test_cat_prints_a_line_for_each_record(stored: Cli) -> None:
    shown = stored("log cat events", prepare=mixed)
    assert shown.out.splitlines() == ["tab\tand é", '"two\\nlines"', "0xff00", "", '{"a": 1}']
    found = lines(stored("log cat events --json", prepare=mixed).out)
    assert [each["position"] for each in found] == [0, 1, 2, 3, 4]
    assert found[1]["text"] == "two\nlines" and base64.b64decode(found[2]["base64"]) == b"\xff\x00"
    some = stored("log cat events --from 1 --limit 2 --positions", prepare=mixed)
    assert some.out == '1\t"two\\nlines"\n2\t0xff00\n'


def test_a_trimmed_position_is_an_error_with_the_first_one(logged: Cli) -> None:
    async def prepare(stage: LogStage) -> None:
        await (await stage.log()).trim(3)

    logged("log cat events --from 1", prepare=prepare).require(
        1, "before position 3 have been deleted; start there"
    )
    assert logged("log cat events", prepare=prepare).lines == ["record 3", "record 4"]
    assert logged("log tail events", prepare=prepare).lines == ["record 3", "record 4"]


def test_tail_prints_the_last_records(logged: Cli) -> None:
    assert logged("log tail events -n 2").lines == ["record 3", "record 4"]
    assert logged("log tail events -n 99 -p").lines == [f"{n}\trecord {n}" for n in range(5)]
    assert logged("log tail events -n 0").out == ""
    assert lines(logged("log tail events -n 1 --json").out) == [{"position": 4, "text": "record 4"}]


def test_tail_follows_until_ctrl_c_and_ends_quietly(logged: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []

    def until_the_last(ui: Any, entry: Any, positions: bool) -> None:
        printed.append(commands.as_line(entry.data))
        if printed[-1] == "later 2":
            raise KeyboardInterrupt

    async def prepare(stage: LogStage) -> None:
        await stage.log()
        log = await stage.db.log("events")

        async def later() -> None:
            for number in range(3):
                await asyncio.sleep(1.0)
                async with log.writer() as writer:
                    await writer.append(b"later %d" % number)

        stage.session.world.spawn(later(), "later records")

    monkeypatch.setattr(commands, "_print", until_the_last)
    ended = logged("log tail events -n 1 -f", prepare=prepare)
    assert (ended.status, ended.out, ended.err) == (130, "", "")
    assert printed == ["record 4", "later 0", "later 1", "later 2"]


def test_following_a_log_ends_when_the_log_is_deleted(logged: Cli) -> None:
    async def prepare(stage: LogStage) -> None:
        await stage.log()

        async def later() -> None:
            await asyncio.sleep(1.0)
            await stage.db.drop_log("events")

        stage.session.world.spawn(later(), "delete the log")

    ended = logged("log tail events -n 1 -f", prepare=prepare)
    ended.require(1, "there is no log 'events'; see `ebla log list`")
    assert ended.lines == ["record 4"]


# -- ledgers -------------------------------------------------------------------------------------------------


def test_ledgers_are_listed_and_shown(logged: Cli) -> None:
    (found,) = logged("ledger list --json").json["ledgers"]
    assert (found["log"], found["state"], found["last"]) == ("events", "closed", 4)
    assert logged("ledger list").lines[1].split()[1:4] == ["events", "closed", "3/3/2"]
    shown = logged(f"ledger show {found['ledger']}")
    assert "3, each entry on 3" in shown.text and "host-" in shown.text
    document = logged(f"ledger show {found['ledger']} --json").json
    assert document["last"] == 4 and len(document["segments"][0]["addresses"]) == 3
    logged("ledger show 99").require(1, "there is no ledger 99; see `ebla ledger list`")
    logged("ledger show many").require(2, "write a whole number")


async def first_ledger(stage: LogStage) -> tuple[int, Any]:
    ledgers = stage.db._logs
    (ledger, *_) = await ledgers.registry.list()
    return ledger, await ledgers.registry.read(ledger)


async def holder(stage: LogStage) -> LogStage:
    """A store of the first ledger."""
    _, found = await first_ledger(stage)
    return next(
        role
        for host in ("host-a", "host-b", "host-c", "host-d")
        if (role := stage.store(host)).instance.uuid == found.segments[0].stores[0]
    )


def id_of(logged: Cli) -> int:
    (found,) = logged("ledger list --json").json["ledgers"]
    number: int = found["ledger"]
    return number


def test_a_check_of_sound_copies_ends_with_0(logged: Cli) -> None:
    checked = logged(f"ledger check {id_of(logged)}")
    assert checked.status == 0
    assert "closed: 5 entries, all 15 copies are there and sound" in checked.text


def test_a_check_names_missing_and_damaged_entries(logged: Cli) -> None:
    async def prepare(stage: LogStage) -> None:
        await stage.log()
        ledger, _ = await first_ledger(stage)
        store: Any = await holder(stage)
        await store._mover.move_all()
        key = records.key_of(ledger, 1)
        await store._environment.commit([DeleteRange(records.ENTRIES, key, key + b"\0")])
        key = records.key_of(ledger, 3)
        value = bytearray(store._environment.get(records.ENTRIES, key))
        value[-1] ^= 1
        await store._environment.commit([Put(records.ENTRIES, [(key, bytes(value))])])
        await stage.db._logs.registry.mark(ledger, store.instance.uuid)

    ledger = id_of(logged)
    checked = logged(f"ledger check {ledger}", prepare=prepare)
    assert checked.status == 1
    assert "missing 1; damaged 3" in checked.text
    assert "every entry has a sound copy: nothing is lost" in checked.text
    assert "marked for repair since" in checked.text
    document = logged(f"ledger check {ledger} --json", prepare=prepare).json
    bad = [each for each in document["stores"] if not each["sound"]]
    assert [(each["missing"], each["damaged"]) for each in bad] == [([1], [3])]
    assert not document["sound"] and document["lost"] == [] and len(document["mark"]["stores"]) == 1


def test_a_check_names_stores_that_do_not_answer(logged: Cli) -> None:
    async def prepare(stage: LogStage) -> None:
        await stage.log()
        _, found = await first_ledger(stage)
        for host in ("host-a", "host-b", "host-c", "host-d"):
            if stage.store(host).instance.uuid in found.segments[0].stores:
                stage.cluster.crash(f"ledger-store/{host}")

    checked = logged(f"ledger check {id_of(logged)}", prepare=prepare)
    assert checked.status == 1
    assert "no sound copy was found of 0-4: bring the stores that do not answer back" in checked.text
    assert "it is not marked for repair yet" in checked.text


# -- health --------------------------------------------------------------------------------------------------


async def lost_store(stage: LogStage) -> None:
    stage.cluster.crash("ledger-store/host-b")


async def full_store(stage: LogStage) -> None:
    await repaired(stage)
    store = stage.store("host-c")
    store.read_only, store.free_bytes = True, 10 << 20


def test_check_counts_the_stores(stored: Cli, ebla: Cli) -> None:
    well = stored("check", prepare=repaired)
    assert well.status == 0 and "4 of 4 ledger stores" in well.text
    assert "ledger store" not in ebla("check").text
    assert ebla("check --json").json["stores"] == []


def test_a_store_that_does_not_answer_makes_the_deployment_degraded(stored: Cli) -> None:
    found = stored("check", prepare=lost_store)
    assert found.status == 1 and found.text.startswith("DEGRADED") and "3 of 4 ledger stores" in found.text
    assert "ledger-store/host-b is UNREACHABLE" in found.text
    assert "next: bring it back; `ebla up` starts the roles that do not run" in found.text


def test_a_store_without_space_makes_the_deployment_degraded(stored: Cli) -> None:
    found = stored("check", prepare=full_store)
    assert found.status == 1 and found.text.startswith("DEGRADED")
    assert "ledger-store/host-c is READ_ONLY: it takes no records, for 10 MiB are free" in found.text


def test_nodes_shows_each_store(stored: Cli, ebla: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    found = stored("nodes --json", prepare=full_store).json["ledger_stores"]
    assert [(each["address"], each["status"]) for each in found][2] == ("ledger-store/host-c", "READ_ONLY")
    assert found[0]["ledgers"] == 0 and found[0]["read_only"] is False
    assert "LEDGER STORE" in stored("nodes", prepare=lost_store).out
    assert "LEDGER STORE" not in ebla("nodes").out
    printed = terminal(monkeypatch, 80)
    assert stored("nodes", prepare=lost_store).status == 0
    assert all(len(line) <= 80 for line in printed.getvalue().splitlines())
