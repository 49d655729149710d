"""`ebla tablet copies | cancel-copy | quarantine` on servers that report scripted copies and entries."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.master.messages import LevelReply, LevelRequest, MoveReplicaRequest
from tests.cli.repair_stage import RepairStage, Toys, on_toys
from tests.cli.stage import Act, terminal
from tests.master.builders import configuration, replica
from tests.master.healed import follower, hosts_of, silence, spare
from tests.master.stage import MASTER

MIB = 1 << 20
ABC = configuration("a", "b", "c")


def job(tablet: str = "aaaa1111", target: str = "c", copied: int = 0, **changes: Any) -> m.CopyJob:
    values: dict[str, Any] = {
        "tablet": tablet,
        "table_name": "flights",
        "source": "tablet-server/a",
        "target": f"tablet-server/{target}",
        "phase": "data",
        "copied_bytes": copied,
        "data_bytes": 40 * MIB,
        "elapsed_s": copied / (10 * MIB),
        "rate": 10.0 * MIB,
        "eta_s": (40 * MIB - copied) / (10 * MIB),
        **changes,
    }
    return m.CopyJob(**values)


async def two_copies(stage: RepairStage) -> None:
    stage.of("c").copies[:] = [(job(copied=10 * MIB),)]
    stage.of("d").copies[:] = [(job("bbbb2222", "d", attempt=3, eta_s=None, phase="log"),)]


async def copies_that_end(stage: RepairStage) -> None:
    stage.of("c").copies[:] = [*((job(copied=10 * MIB * n),) for n in range(1, 5)), ()]
    stage.of("c").replicas[:] = [replica("aaaa1111", ABC)]
    stage.of("d").copies[:] = [
        (job("bbbb2222", "d", copied=MIB),),
        (),
        (job("bbbb2222", "d", attempt=2),),
        (),
    ]
    stage.of("d").replicas[:] = [replica("bbbb2222", ABC, state="deleted", error="no space left")]


def test_the_copies_of_all_servers_are_listed(toys: Toys) -> None:
    shown = toys("tablet copies", prepare=two_copies)
    assert shown.status == 0
    first, second = [line.split() for line in shown.lines[1:]]
    assert " ".join(first) == "aaaa1111 flights a c data 10 MiB of 40 MiB 10 MiB/s 3.0 s"
    assert second[-2:] == ["-", "3"], "the remaining time is unknown, the attempt is the third"
    document = toys("tablet copies --json", prepare=two_copies).json
    assert [(each["tablet"], each["target"]) for each in document["copies"]] == [
        ("aaaa1111", "tablet-server/c"),
        ("bbbb2222", "tablet-server/d"),
    ]
    assert document["silent"] == {}
    assert toys("tablet copies").lines == ["no copy is running"]


def test_a_server_without_an_answer_is_named(toys: Toys) -> None:
    async def prepare(stage: RepairStage) -> None:
        await two_copies(stage)
        stage.cluster.crash("tablet-server/d")

    shown = toys("tablet copies", prepare=prepare)
    assert [line for line in shown.lines if line.startswith("  d does not answer: ")]
    assert "aaaa1111" in shown.out and "bbbb2222" not in shown.out


def test_without_a_terminal_copies_are_watched_in_lines_until_none_is_left(toys: Toys) -> None:
    shown = toys("tablet copies --watch", prepare=copies_that_end)
    assert shown.status == 0
    assert shown.lines[0] == "flights aaaa1111 a -> c: 10 MiB of 40 MiB, data, 10 MiB/s, 3.0 s left"
    ended = [line for line in shown.lines if " after " in line]
    assert ended == [
        "flights bbbb2222 a -> d: failed after 0.1 s, 1.0 MiB: no space left",
        "flights bbbb2222 a -> d: failed after 0.0 s, 0 B: no space left",
        "flights aaaa1111 a -> c: copied after 4.0 s, 40 MiB",
    ]
    assert shown.lines[-1] == "no replica needs a copy"
    document = toys("tablet copies --watch --json", prepare=copies_that_end).json
    ended_copies = [(each["how"], each["job"]["copied_bytes"], each["why"]) for each in document["ended"]]
    assert ended_copies == [
        ("failed", MIB, "no space left"),
        ("failed", 0, "no space left"),
        ("copied", 40 * MIB, None),
    ]
    assert document["copies"] == []


def test_an_ended_copy_shows_its_servers_byte_count(toys: Toys) -> None:
    async def prepare(stage: RepairStage) -> None:
        stage.of("c").copies[:] = [(job(copied=0),), ()]
        stage.of("c").ended[:] = [job(copied=3 * MIB, attempt=2), job(copied=MIB, elapsed_s=12.0)]
        stage.of("c").replicas[:] = [replica("aaaa1111", ABC)]

    shown = toys("tablet copies --watch", prepare=prepare)
    assert "flights aaaa1111 a -> c: copied after 12 s, 1.0 MiB" in shown.lines


def test_watching_waits_for_a_copy_that_has_not_begun(toys: Toys) -> None:
    assert toys("tablet copies --watch").lines == ["no copy is running"]

    async def moving(stage: RepairStage) -> None:
        stage.raft.copies = False
        tablet = stage.tablets[0]
        move = MoveReplicaRequest(tablet, follower(stage, tablet), spare(stage, tablet))
        await stage.persist(lambda: stage.ask("move_replica", move, m.MembersReply))
        await stage.until(lambda: len(hosts_of(stage, tablet)) == 4)
        stage.cluster.loop.call_later(7.0, lambda: setattr(stage.raft, "copies", True))

    shown = toys("tablet copies --watch", prepare=moving, after=lambda stage: stage.cluster.loop.time())
    assert shown.seen > 7.0, "the command waits for the copy"
    assert shown.lines[0].startswith("waiting for a copy: flights ")
    assert (shown.status, shown.lines[-1]) == (0, "no copy is running")


def places(stage: RepairStage, number: int) -> None:
    """How many replicas may be on their way to a server from now on."""
    repairs = stage.master.repairs
    repairs._options = replace(repairs._options, replicas_coming_max=number)


async def one_lost(stage: RepairStage) -> None:
    lost = follower(stage, stage.tablets[0])
    silence(stage, lost)
    stage.cluster.crash(f"tablet-server/{lost}")
    await stage.until(lambda: not stage.alive(lost))


async def one_draining(stage: RepairStage) -> None:
    await stage.drain(follower(stage, stage.tablets[0]))


def now(stage: RepairStage) -> float:
    return stage.cluster.loop.time()


@pytest.mark.parametrize("begin", [one_lost, one_draining])
def test_watching_waits_for_tablets_whose_turn_for_a_replica_has_not_come(toys: Toys, begin: Act) -> None:
    async def later(stage: RepairStage) -> None:
        places(stage, 0)
        await begin(stage)
        stage.cluster.loop.call_later(60.0, lambda: places(stage, 32))

    shown = toys("tablet copies --watch", prepare=later, after=lambda stage: (now(stage), stage.master.views))
    ended_at, views = shown.seen
    assert ended_at > 60.0 and not views.unsettled
    assert re.match(r"waiting for a copy: \d tablets? needs? another replica$", shown.lines[0])
    assert shown.status == 0 and "no copy is running" in shown.lines


async def lost_while_frozen(stage: RepairStage) -> None:
    await stage.persist(lambda: stage.ask("level", LevelRequest("freezed"), LevelReply))
    await one_lost(stage)


@pytest.mark.parametrize(("hosts", "begin"), [("abc", one_lost), ("abcd", lost_while_frozen)])
def test_a_watch_ends_and_counts_the_tablets_that_cannot_get_a_replica(
    monkeypatch: pytest.MonkeyPatch, hosts: str, begin: Act
) -> None:
    async def prepare(stage: RepairStage) -> None:
        await begin(stage)
        began.append(now(stage))

    began: list[float] = []
    shown = on_toys(monkeypatch, hosts)("tablet copies --watch", prepare=prepare, after=now)
    assert shown.seen - began[0] < 30.0, shown.out
    assert re.search(r"^no copy begins: \d tablets? needs? another replica; `ebla check`", shown.out, re.M)


def test_a_watch_without_any_change_ends(toys: Toys) -> None:
    async def never(stage: RepairStage) -> None:
        places(stage, 0)
        await one_lost(stage)

    shown = toys("tablet copies --watch --json", prepare=never, after=now)
    assert (shown.status, shown.json["waiting"]) == (0, [])
    assert shown.json["tablets_waiting"] > 0
    assert 120.0 < shown.seen < 200.0


def test_the_target_of_several_ended_copies_is_asked_once(toys: Toys) -> None:
    async def prepare(stage: RepairStage) -> None:
        stage.of("c").copies[:] = [tuple(job(f"{number}aaa1111") for number in range(5)), ()]

    shown = toys("tablet copies --watch", prepare=prepare, after=lambda stage: stage.of("c").looks)
    assert len([line for line in shown.lines if " failed after " in line]) == 5
    assert shown.seen == 2, "once for the copies that ended, once for what still waits"


async def ended_beyond_its_last_report(stage: RepairStage) -> None:
    stage.of("c").copies[:] = [(job(copied=30 * MIB),), ()]
    stage.of("c").ended[:] = [job(copied=41 * MIB)]
    stage.of("c").replicas[:] = [replica("aaaa1111", ABC)]


@pytest.mark.parametrize(
    ("prepare", "shown"),
    [
        (copies_that_end, ("40.0/40.0 MiB", "copied after 4.0 s")),
        (ended_beyond_its_last_report, ("41.0/41.0 MiB", "copied after")),
    ],
)
def test_on_a_terminal_each_copy_has_a_progress_bar_which_is_full_at_its_end(
    toys: Toys, monkeypatch: pytest.MonkeyPatch, prepare: Act, shown: tuple[str, str]
) -> None:
    printed = terminal(monkeypatch, 120)
    assert toys("tablet copies --watch", prepare=prepare).status == 0
    last = [line for line in printed.getvalue().splitlines() if "aaaa1111" in line][-1]
    for words in ("flights aaaa1111 a -> c", "━", *shown):
        assert words in last


def requests(stage: RepairStage) -> list[Any]:
    return [request for host in "bcd" for request in stage.of(host).requests]


def test_a_copy_is_cancelled_at_the_server_that_copies(toys: Toys) -> None:
    done = toys("tablet cancel-copy aaaa", prepare=two_copies, after=requests)
    assert done.lines == ["cancelled 1 copy of tablet aaaa1111 to c"]
    assert [request.tablet for request in done.seen] == ["aaaa1111"]
    toys("tablet cancel-copy aaaa d", prepare=two_copies).require(
        1, "no copy of tablet 'aaaa' to d is under way"
    )

    async def alike(stage: RepairStage) -> None:
        stage.of("c").copies[:] = [(job("aaaa1111"), job("aaaa2222"))]

    toys("tablet cancel-copy aaaa", prepare=alike).require(1, "is too short")

    async def silent(stage: RepairStage) -> None:
        await two_copies(stage)
        stage.scripts["c"].silent = True
        await stage.cluster.restart(MASTER)

    unreported = toys("tablet cancel-copy aaaa", prepare=silent, after=requests)
    assert unreported.status == 0, unreported.err
    assert [request.tablet for request in unreported.seen] == ["aaaa1111"]


def entry(name: str, **changes: Any) -> m.QuarantineEntry:
    values: dict[str, Any] = {
        "tablet": "aaaa1111",
        "table_name": "flights",
        "reason": "it left the tablet's configuration",
        "at_us": 1_600_000_000_000_000,
        "last_index": 42,
        "bytes": 3 * MIB,
        **changes,
    }
    return m.QuarantineEntry(name=name, **values)


async def some_kept(stage: RepairStage) -> None:
    stage.of("b").quarantine[:] = [entry("aaaa1111-1"), entry("aaaa1111-2", at_us=1_600_000_100_000_000)]
    stage.of("c").quarantine[:] = [entry("bbbb2222-1", at_us=1_600_000_050_000_000)]


QUARANTINE = ("tablet", "quarantine")


def test_the_quarantine_is_listed_oldest_first(toys: Toys) -> None:
    shown = toys(*QUARANTINE, "list", prepare=some_kept)
    assert [line.split()[0] for line in shown.lines[1:-1]] == ["aaaa1111-1", "bbbb2222-1", "aaaa1111-2"]
    assert re.search(r" \d{4,} d +3\.0 MiB  left the tablet's configuration$", shown.lines[1])
    assert shown.lines[-1] == "3 entries, 9.0 MiB"
    document = toys(*QUARANTINE, "list", "--json", prepare=some_kept).json
    assert [each["server"] for each in document["entries"]] == [
        "tablet-server/b",
        "tablet-server/c",
        "tablet-server/b",
    ]
    assert toys(*QUARANTINE, "list").lines == ["nothing is in quarantine"]


async def two_of_a_tablet(stage: RepairStage) -> None:
    names = [f"{'ab' * 16}-17000000062{number}" for number in ("10840", "20840")]
    stage.of("b").quarantine[:] = [entry(name) for name in names]


def test_quarantine_ids_are_short_and_beginnings_of_them_are_accepted(toys: Toys) -> None:
    shown = toys(*QUARANTINE, "list", prepare=two_of_a_tablet)
    assert [line.split()[0] for line in shown.lines[1:-1]] == ["abababab-210840", "abababab-220840"]
    done = toys(*QUARANTINE, "purge", "abababab-21", "-y", prepare=two_of_a_tablet)
    assert done.lines == ["purged 1 entry, 3.0 MiB"]
    several = toys(*QUARANTINE, "purge", "abab", "-y", prepare=two_of_a_tablet)
    several.require(1, "'abab' may mean abababab-210840 or abababab-220840")


async def one_silent(stage: RepairStage) -> None:
    await some_kept(stage)
    stage.cluster.crash("tablet-server/c")


def test_a_purge_names_the_servers_that_keep_their_entries_because_they_do_not_answer(toys: Toys) -> None:
    for words, status, purged in (("--all", 1, 2), ("aaaa1111-1", 0, 1)):
        done = toys(*QUARANTINE, "purge", words, "-y", prepare=one_silent)
        assert (done.status, "  c does not answer: " in done.out) == (status, True), done.out + done.err
        document = toys(*QUARANTINE, "purge", words, "-y", "--json", prepare=one_silent).json
        assert (len(document["purged"]), list(document["silent"])) == (purged, ["tablet-server/c"])


async def much_kept(stage: RepairStage) -> None:
    stage.of("b").quarantine[:] = [entry("aaaa1111-1", bytes=3 << 30)]


def test_check_names_a_quarantine_with_much_or_old_data(toys: Toys) -> None:
    shown = toys("check", prepare=much_kept)
    assert "note: quarantine keeps 3.0 GiB of deleted replicas, the oldest for" in shown.text
    document = toys("check", "--json", prepare=much_kept).json
    assert document["quarantine"] == {"bytes": 3 << 30, "entries": 1, "oldest_us": 1_600_000_000_000_000}
    assert "quarantine" not in toys("check").out


def test_quarantine_entries_are_restored_on_their_host(toys: Toys) -> None:
    done = toys(*QUARANTINE, "restore-to", "/tmp/out", "bbbb2222-1", prepare=some_kept, after=requests)
    assert done.lines == ["restored to c:/tmp/out/bbbb2222-1"]
    assert [(each.names, each.directory) for each in done.seen] == [(("bbbb2222-1",), "/tmp/out")]
    for words, status, reason in (
        (("out", "bbbb2222-1"), 2, "must be an absolute path"),
        (("/tmp/out", "bbbb2222-9"), 1, "did you mean 'bbbb2222-1'"),
    ):
        toys(*QUARANTINE, "restore-to", *words, prepare=some_kept).require(status, reason)


def test_quarantine_entries_are_purged_by_name_or_all_after_confirmation(toys: Toys) -> None:
    done = toys(*QUARANTINE, "purge", "aaaa1111-2", "-y", prepare=some_kept, after=requests)
    assert done.lines == ["purged 1 entry, 3.0 MiB"]
    assert [each.names for each in done.seen] == [("aaaa1111-2",)]
    every = toys(*QUARANTINE, "purge", "--all", "-y", prepare=some_kept, after=requests)
    assert every.lines == ["purged 3 entries, 9.0 MiB"]
    assert [each.names for each in every.seen] == [("aaaa1111-1", "aaaa1111-2"), ("bbbb2222-1",)]
    for words, status in ((("--all",), 1), ((), 2), (("aaaa1111-1", "--all"), 2)):
        refused = toys(*QUARANTINE, "purge", *words, prepare=some_kept, after=requests)
        assert (refused.status, refused.seen or []) == (status, [])
    assert toys(*QUARANTINE, "purge", "--all").lines == ["nothing is in quarantine"]
