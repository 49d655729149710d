"""`ebla tablet copies | cancel-copy`: replicas that are being copied, as the copying servers report them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
import typer

from ebla.cli.frame.cluster import Cluster, within
from ebla.cli.frame.commands import command
from ebla.cli.frame.problems import Refused
from ebla.cli.frame.render import age, brief, count, host_of, listing, short, size
from ebla.cli.frame.ui import Ui
from ebla.cli.tablets.members import names

if TYPE_CHECKING:
    from ebla.actors.messages import CopyJob
    from ebla.health.verdicts import Unanswered

LOOK_S = 0.5
WAITING_LOOK_S = 2.0  # every replica is asked for
LINES_EVERY_S = 5.0
WAITING_SHOWN = 4
SERVER_S = 3.0
CANCEL_S = 30.0


class Ended(msgspec.Struct, frozen=True):
    """A copy as it was at its end, or was seen last, and what became of it: copied, or failed; `why` it did."""

    job: CopyJob
    how: str
    why: str | None = None


class Seen(msgspec.Struct, frozen=True):
    """All copies at one moment. `silent`: servers that gave no answer, and why. `ended`: of those that were watched, each
    attempt; `waiting`: what is to be copied and is not yet. `told`: copies that have ended, as their servers tell of them."""

    jobs: tuple[CopyJob, ...]
    silent: dict[str, str]
    ended: tuple[Ended, ...] = ()
    waiting: tuple[str, ...] = ()
    told: tuple[CopyJob, ...] = ()


def copies(
    ui: Ui,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show them until no replica needs a copy, or Ctrl-C.")
    ] = False,
) -> None:
    """List the copies that run: source, target, amount, speed, remaining time."""

    async def work(cluster: Cluster) -> Seen:
        if not watch:
            return await look(cluster)
        with _screen(ui) as screen:
            return await _watched(cluster, screen)

    seen = within(ui, work)
    parts: list[Any] = []
    if not seen.jobs:
        parts = ["no replica needs a copy" if seen.ended else "no copy is running"]
    elif not watch:
        parts = [_table(seen.jobs)]
    ui.show(
        {
            "copies": msgspec.to_builtins(seen.jobs),
            "ended": msgspec.to_builtins(seen.ended),
            "silent": seen.silent,
        },
        *parts,
        *(f"  {host_of(address)} does not answer: {brief(why)}" for address, why in seen.silent.items()),
    )


async def look(cluster: Cluster) -> Seen:
    from ebla.actors.messages import CopyJobs, Empty
    from ebla.health.survey import ask, gathered
    from ebla.health.verdicts import Unanswered

    addresses = await servers(cluster)
    answers: list[CopyJobs | Unanswered] = await gathered(
        [ask(cluster.network, each, "list_copies", Empty(), CopyJobs, SERVER_S) for each in addresses]
    )
    jobs: list[CopyJob] = []
    told: list[CopyJob] = []
    silent: dict[str, str] = {}
    for address, said in zip(addresses, answers, strict=True):
        if isinstance(said, Unanswered):
            silent[address] = said.message
        else:
            jobs += said.jobs
            told += said.ended
    jobs.sort(key=lambda job: (job.table_name, job.tablet))
    return Seen(tuple(jobs), silent, told=tuple(told))


async def servers(cluster: Cluster) -> list[str]:
    """Every address at which a tablet server is, or was heard by the master."""
    heard = [status.address for status in await cluster.database.servers()]
    return sorted(dict.fromkeys([*cluster.slots, *heard]))


async def _watched(cluster: Cluster, screen: Screen) -> Seen:
    """Returns how each copy ended, when no member is left that lacks one: after one that failed there is another, in a while."""
    import asyncio

    present: dict[tuple[str, str, int], CopyJob] = {}
    ended: list[Ended] = []
    while True:
        seen = await look(cluster)
        before, present = present, {_key(job): job for job in seen.jobs}
        told = {_key(job): job for job in seen.told}
        over = [await _end(cluster, told.get(key, job)) for key, job in before.items() if key not in present]
        ended += over
        waiting = () if seen.jobs else await _waiting(cluster)
        screen.show(Seen(seen.jobs, seen.silent, tuple(over), waiting))
        if not seen.jobs and not waiting:
            return Seen((), seen.silent, tuple(ended))
        await asyncio.sleep(WAITING_LOOK_S if waiting else LOOK_S)


def _key(job: CopyJob) -> tuple[str, str, int]:
    return job.tablet, job.target, job.attempt


async def _end(cluster: Cluster, job: CopyJob) -> Ended:
    """By what its server has now."""
    from ebla.actors.messages import Empty, ServerState
    from ebla.health.survey import ask
    from ebla.health.verdicts import Unanswered

    said = await ask(cluster.network, job.target, "status", Empty(), ServerState, SERVER_S)
    if isinstance(said, Unanswered):
        return Ended(job, "ended", said.message)
    found = next((replica for replica in said.replicas if replica.tablet == job.tablet), None)
    if found is None:
        return Ended(job, "failed", "its server no longer has it")
    if found.state in ("running", "bootstrapping"):
        return Ended(job, "copied")
    return Ended(job, "failed", found.error)


async def _waiting(cluster: Cluster) -> tuple[str, ...]:
    """Members that have no replica yet, on servers that answer."""
    from ebla.health.tablets import judge

    health = judge(await cluster.survey())
    return tuple(
        f"{tablet.table} {short(tablet.tablet)} on {host_of(replica.address)}"
        for tablet in health.tablets
        for replica in tablet.replicas
        if replica.status in ("COPYING", "TOMBSTONE", "MISSING", "FAILED") and tablet.leader is not None
    )


def _table(jobs: Sequence[CopyJob]) -> Any:
    rows = [
        (
            short(job.tablet),
            job.table_name,
            host_of(job.source),
            host_of(job.target),
            job.phase,
            f"{size(job.copied_bytes)} of {size(job.data_bytes)}",
            f"{size(int(job.rate))}/s",
            age(job.eta_s),
            "" if job.attempt == 1 else job.attempt,
        )
        for job in jobs
    ]
    headers = ("TABLET", "TABLE", "FROM", "TO", "PHASE", "COPIED>", "RATE>", "LEFT>", "TRY>")
    return listing(headers, rows)


# -- as it goes ----------------------------------------------------------------------------------------------


class Screen(Protocol):
    def show(self, seen: Seen) -> None:
        """`ended`: since it was shown last."""


@contextmanager
def _screen(ui: Ui) -> Iterator[Screen]:
    if ui.json:
        yield _Nothing()
    elif not ui.out.is_terminal:
        yield _Lines(ui)
    else:
        with _bars(ui) as bars:
            yield bars


class _Nothing:
    def show(self, seen: Seen) -> None:
        """One document at the end says it all."""


class _Lines:
    """A line for each copy every few seconds, and one when it has ended."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._told_at = float("-inf")
        self._known: dict[tuple[str, ...], None] = {}

    def show(self, seen: Seen) -> None:
        import asyncio

        now = asyncio.get_running_loop().time()
        present = dict.fromkeys(
            [*((job.tablet, job.target) for job in seen.jobs), *((w,) for w in seen.waiting)]
        )
        for each in seen.ended:
            self._ui.print(f"{_title(each.job)}: {_told(each)}")
        fresh = any(key not in self._known for key in present)
        self._known = present
        if fresh or now - self._told_at >= LINES_EVERY_S:
            self._told_at = now
            for job in seen.jobs:
                self._ui.print(f"{_title(job)}: {_state(job)}")
            if seen.waiting:
                self._ui.print(_waits(seen.waiting))


@contextmanager
def _bars(ui: Ui) -> Iterator[Screen]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        DownloadColumn(binary_units=True),
        TextColumn("{task.fields[text]}", style="dim", markup=False),
    )
    with Progress(*columns, console=ui.out) as progress:
        yield _Bars(progress)


class _Bars:
    """A bar for each copy; of one that has ended the bar stays as it was, with its time."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._tasks: dict[tuple[str, str], Any] = {}
        self._waiting: Any = None

    def show(self, seen: Seen) -> None:
        for each in seen.ended:
            task = self._tasks[each.job.tablet, each.job.target]
            whole = {"completed": each.job.copied_bytes, "total": each.job.copied_bytes}
            self._progress.update(task, text=_told(each), **(whole if each.how == "copied" else {}))
        for job in seen.jobs:
            key = job.tablet, job.target
            if key not in self._tasks:
                self._tasks[key] = self._progress.add_task(_title(job), total=None, text="")
            total = max(job.data_bytes, job.copied_bytes) or None
            self._progress.update(self._tasks[key], completed=job.copied_bytes, total=total, text=_pace(job))
        if self._waiting is not None:
            self._progress.remove_task(self._waiting)
            self._waiting = None
        if seen.waiting:
            self._waiting = self._progress.add_task(_waits(seen.waiting), total=None, text="")


def _title(job: CopyJob) -> str:
    return f"{job.table_name} {short(job.tablet)} {host_of(job.source)} -> {host_of(job.target)}"


def _told(ended: Ended) -> str:
    job = ended.job
    why = f": {brief(ended.why)}" if ended.why else ""
    return f"{ended.how} after {age(job.elapsed_s)}, {size(job.copied_bytes)}{why}"


def _waits(waiting: Sequence[str]) -> str:
    more = f" and {len(waiting) - WAITING_SHOWN} more" if len(waiting) > WAITING_SHOWN else ""
    return f"waiting for a copy: {', '.join(waiting[:WAITING_SHOWN])}{more}"


def _state(job: CopyJob) -> str:
    done = f"{size(job.copied_bytes)} of {size(job.data_bytes)}"
    again = "" if job.attempt == 1 else f", attempt {job.attempt}"
    return f"{done}, {_pace(job)}{again}"


def _pace(job: CopyJob) -> str:
    """The phase, and the speed and the time left as far as they can be told."""
    told = [job.phase]
    if job.rate > 0:
        told.append(f"{size(int(job.rate))}/s")
    if job.eta_s is not None:
        told.append(f"{age(job.eta_s)} left")
    return ", ".join(told)


# -- cancel --------------------------------------------------------------------------------------------------


def cancel_copy(
    ui: Ui,
    tablet: Annotated[str, typer.Argument(metavar="TABLET", help="The tablet's id, or its beginning.")],
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="[SERVER]", help="Only copies to this host, address or uuid.", show_default=False
        ),
    ] = None,
) -> None:
    """Cancel copies of a tablet and delete the copied data. If a copy is still needed, the leader begins again later."""

    async def work(cluster: Cluster) -> list[CopyJob]:
        from ebla.actors.messages import CancelCopyRequest, Empty

        uuids = {status.address: status.uuid for status in await cluster.database.servers()}
        seen = await look(cluster)
        found = [
            job
            for job in seen.jobs
            if job.tablet.startswith(tablet)
            and (server is None or names(server, uuids.get(job.target, ""), job.target))
        ]
        if not found:
            where = "" if server is None else f" to {server}"
            raise Refused(
                f"no copy of tablet {tablet!r}{where} is under way",
                hint="`ebla tablet copies` lists all of them",
            )
        if len({job.tablet for job in found}) > 1:
            raise Refused(
                f"{tablet!r} is too short: several copied tablets begin with it",
                hint="give more characters of it",
            )
        for job in found:
            uuid = uuids.get(job.target) or await _uuid_at(cluster, job.target)
            request = CancelCopyRequest(uuid, job.tablet)
            await cluster.call(job.target, "cancel_copy", request, Empty, CANCEL_S)
        return found

    found = within(ui, work)
    hosts = ", ".join(host_of(job.target) for job in found)
    ui.show(
        {"cancelled": msgspec.to_builtins(found)},
        f"cancelled {count(len(found), 'copy', 'copies')} of tablet {short(found[0].tablet)} to {hosts}",
    )


async def _uuid_at(cluster: Cluster, address: str) -> str:
    """Of a server that the master has not heard yet."""
    from ebla.actors.messages import Empty, ServerState

    return (await cluster.call(address, "status", Empty(), ServerState, SERVER_S)).instance.uuid


def register(app: typer.Typer) -> None:
    command(app, "copies")(copies)
    command(app, "cancel-copy")(cancel_copy)
