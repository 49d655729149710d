"""The shell that drives a role inside its process, on a real disk and without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from ebla.actors import errors
from ebla.actors.deadlines import Timeout, timeout
from ebla.actors.errors import NotRunning, from_frame
from ebla.actors.figures import Figure
from ebla.actors.messages import Empty
from ebla.actors.ray_shell import (
    START_TRIES_MAX,
    Assignment,
    Exit,
    Export,
    MachineClock,
    Pong,
    Shell,
    Tasks,
    dotted,
)
from ebla.actors.world import World, decode_answer, encode
from ebla.storage.environment import Disk
from ebla.storage.errors import Damaged, DirectoryLocked, DiskFailed, InvalidArgument, OldCopy
from tests.client.loopback import LoopNetwork
from tests.cluster.toy import Number, State, Toy, ToyOptions
from tests.staged import staged


class FastClock:
    """A clock whose sleeps only let other tasks run."""

    def __init__(self) -> None:
        self.slept = 0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_us(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.slept += 1
        await asyncio.sleep(0.001)

    def timeout(self, seconds: float) -> Timeout:
        return timeout(seconds)


class Stage:
    """Shells on one machine, and the exit statuses of their processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ended: list[Exit] = []
        self.shells: list[Shell] = []
        self.clock = FastClock()

    def shell(
        self,
        options: msgspec.Struct | None = None,
        role: str = dotted(Toy),
        export: Export | None = None,
        *,
        sets_aside: bool = False,
    ) -> Shell:
        chosen = options or ToyOptions()
        assignment = Assignment(
            address="toy/a",
            slot="a",
            namespace="ebla-t",
            role=role,
            options_type=dotted(type(chosen)),
            options=msgspec.msgpack.encode(chosen),
            root=str(self.root / "toy"),
            sets_aside=sets_aside,
        )

        def make_world(disk: Disk, tasks: Tasks, fail: Callable[[BaseException], None]) -> World:
            return World(
                address="toy/a",
                clock=self.clock,
                network=LoopNetwork(),
                disk=disk,
                random=random.Random(7),
                spawn=tasks.spawn,
                fail=fail,
            )

        self.shells.append(Shell(assignment, make_world, self.clock, self.ended.append, export))
        return self.shells[-1]

    async def running(self, **options: Any) -> Shell:
        shell = self.shell(**options)
        assert (await settle(shell)).state == "running"
        return shell

    async def failed(self, **options: Any) -> Shell:
        shell = self.shell(**options)
        assert (await settle(shell)).state == "failed"
        return shell


def play(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    """Run the scenario in a new directory, and stop all shells."""

    async def run() -> None:
        async with timeout(20):
            await scenario(stage)
            for shell in stage.shells:
                await shell.stop()

    with tempfile.TemporaryDirectory() as root:
        stage = Stage(Path(root))
        asyncio.run(run())


on_stage = staged(play)


async def settle(shell: Shell) -> Pong:
    while pong(shell).state == "starting":
        await asyncio.sleep(0.001)
    return pong(shell)


def pong(shell: Shell) -> Pong:
    return decode_answer(shell.pong("node", False, 1), Pong)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def shown(shell: Shell) -> State:
    state = await ask(shell, "show", Empty(), State)
    assert isinstance(state, State)
    return state


async def ask(shell: Shell, method: str, message: msgspec.Struct, answer: type = Empty) -> object:
    return decode_answer(await shell.answer(method, encode(message)), answer)


@on_stage
async def test_rpcs_are_refused_until_the_role_has_started(stage: Stage) -> None:
    shell = stage.shell()
    with pytest.raises(NotRunning, match="toy/a is starting"):
        await ask(shell, "show", Empty(), State)
    assert (await settle(shell)).state == "running"
    assert (await shown(shell)).seqno == 1


@on_stage
async def test_a_second_incarnation_waits_while_the_first_lives(stage: Stage) -> None:
    first = await stage.running()
    second = stage.shell()
    await until(lambda: pong(second).error is not None)
    waiting = pong(second)
    assert waiting.state == "starting" and waiting.error is not None
    assert isinstance(from_frame(waiting.error), DirectoryLocked)
    with pytest.raises(NotRunning, match="never run two"):
        await ask(second, "show", Empty(), State)
    await first.stop()
    assert (await settle(second)).state == "running"
    assert (await shown(second)).seqno == 2
    assert stage.ended == []


@on_stage
async def test_waiting_for_a_directory_is_bounded_and_ends_the_process(stage: Stage) -> None:
    await stage.running()
    stage.shell()
    await until(lambda: stage.ended)
    assert stage.ended == [Exit.LOCKED]
    assert stage.clock.slept == START_TRIES_MAX


@on_stage
async def test_a_damaged_directory_is_reported_to_every_caller_and_not_formatted(stage: Stage) -> None:
    (stage.root / "toy").mkdir()
    (stage.root / "toy" / "something").write_text("unknown")
    shell = await stage.failed()
    for method in ("show", "echo"):
        with pytest.raises(Damaged, match="move the directory aside"):
            await ask(shell, method, Empty())
    assert stage.ended == []
    assert not (stage.root / "toy" / "instance").exists()


@on_stage
async def test_the_next_incarnation_reports_a_failed_disk(stage: Stage) -> None:
    first = await stage.running()
    await first.stop()
    (stage.root / "toy" / "FAILED").write_text('{"reason": "Input/output error", "at": "now"}')
    second = await stage.failed()
    with pytest.raises(DiskFailed, match="Input/output error"):
        await ask(second, "show", Empty(), State)


@on_stage
async def test_a_replaceable_role_starts_again_beside_its_directory_set_aside(stage: Stage) -> None:
    first = await stage.running(sets_aside=True)
    before = await shown(first)
    await ask(first, "grow_old", Empty())
    await first.stop()
    second = await stage.running(sets_aside=True)
    after = await shown(second)
    assert (before.seqno, after.seqno) == (1, 1)
    assert (stage.root / "toy.set-aside/FAILED").exists()


@on_stage
async def test_an_unknown_role_class_is_reported_without_a_crash(stage: Stage) -> None:
    shell = await stage.failed(role="tests.cluster.toy:Missing")
    with pytest.raises(InvalidArgument, match="every node needs the same version"):
        await ask(shell, "show", Empty(), State)


@pytest.mark.parametrize(
    ("method", "status", "words"),
    [
        ("lose_disk", Exit.DISK_FAILED, "a sync failed, says the toy"),
        ("fail_beside", Exit.DEFECT, "a background task of the toy failed"),
        ("grow_old", Exit.OLD_COPY, "the toy is an old copy, set it aside"),
        ("give_up", Exit.FAILED, "the toy gives up"),
    ],
)
@on_stage
async def test_a_role_that_fails_ends_its_process_with_a_message(
    stage: Stage, capsys: pytest.CaptureFixture[str], method: str, status: Exit, words: str
) -> None:
    shell = await stage.running()
    await ask(shell, method, Empty())
    await until(lambda: stage.ended)
    assert stage.ended == [status]
    await shell.stop()
    printed = capsys.readouterr().err
    assert words in printed and "Traceback" in printed and "toy/a" in printed


@on_stage
async def test_an_old_copy_does_not_start_again_and_answers_with_the_reason(stage: Stage) -> None:
    shell = await stage.running()
    await ask(shell, "grow_old", Empty())
    await shell.stop()
    again = await stage.failed()
    with pytest.raises(OldCopy, match=r"^the toy is an old copy, set it aside .*was given up"):
        await ask(again, "show", Empty(), State)


@on_stage
async def test_a_defect_in_a_handler_ends_the_call_and_not_the_role(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = await stage.running()
    with pytest.raises(errors.Internal, match="a defect of the toy"):
        await ask(shell, "stumble", Empty())
    assert await ask(shell, "echo", Number(3), Number) == Number(3)
    assert stage.ended == []
    assert "Traceback" in capsys.readouterr().err


@on_stage
async def test_stopping_releases_the_directory_and_can_be_repeated(stage: Stage) -> None:
    shell = await stage.running()
    await ask(shell, "add", Number(5), Number)
    await asyncio.gather(shell.stop(), shell.stop())
    assert pong(shell).state == "stopping"
    with pytest.raises(NotRunning, match="stopping"):
        await ask(shell, "show", Empty(), State)
    again = await stage.running()
    assert (await shown(again)).count == 5


@on_stage
async def test_a_call_that_never_ends_does_not_delay_the_stop(stage: Stage) -> None:
    shell = await stage.running()
    waiting = asyncio.ensure_future(ask(shell, "hang", Empty()))
    while await ask(shell, "hanging", Empty(), Number) == Number(0):
        await asyncio.sleep(0.001)
    await shell.stop()
    with pytest.raises(errors.OutcomeUnknown, match="stopped before hang was done"):
        await waiting


@on_stage
async def test_a_role_can_be_stopped_before_it_has_started(stage: Stage) -> None:
    await stage.shell().stop()
    again = await stage.running()
    await again.stop()
    assert stage.ended == []


@on_stage
async def test_the_figures_of_a_running_role_are_exported_repeatedly(stage: Stage) -> None:
    exported: list[dict[str, float]] = []

    def export(figures: Iterable[Figure]) -> None:
        exported.append({figure.name: figure.value for figure in figures})

    shell = stage.shell(export=export)
    await until(lambda: exported)
    assert exported[0] == {"role_running": 0}
    await settle(shell)
    await ask(shell, "add", Number(5), Number)
    await until(lambda: exported[-1] == {"role_running": 1, "toy_count": 5})
    await ask(shell, "add", Number(2), Number)
    await until(lambda: exported[-1]["toy_count"] == 7)


@on_stage
async def test_a_role_that_cannot_start_is_exported_as_not_running(stage: Stage) -> None:
    exported: list[list[Figure]] = []
    await stage.failed(role="tests.cluster.toy:Missing", export=lambda figures: exported.append([*figures]))
    seen = len(exported)
    await until(lambda: len(exported) > seen + 1)
    assert [(figure.name, figure.value) for figure in exported[-1]] == [("role_running", 0)]


@on_stage
async def test_a_failing_export_is_reported_once_and_ends_nothing(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[int] = []

    def export(figures: Iterable[Figure]) -> None:
        tried.append(len(list(figures)))
        raise RuntimeError("figures are refused")

    shell = await stage.running(export=export)
    await until(lambda: len(tried) > 3)
    assert await ask(shell, "echo", Number(3), Number) == Number(3)
    assert stage.ended == []
    await shell.stop()
    assert capsys.readouterr().err.count("RuntimeError: figures are refused") == 1


def test_exit_statuses_are_distinct() -> None:
    assert len(set(Exit)) == len(Exit) and not {0, 1, 137} & set(Exit)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_sleep_does_not_end_early(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """A timer of uvloop does, in a quarter of all cases."""

    async def early_s() -> list[float]:
        clock, early = MachineClock(), []
        for number in range(100):
            seconds = 0.001 + number * 0.00003
            began = clock.monotonic()
            await clock.sleep(seconds)
            early.append(began + seconds - clock.monotonic())
        return [each for each in early if each > 0]

    with contextlib.closing(loop()) as made:
        assert made.run_until_complete(early_s()) == []
