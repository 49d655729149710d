"""`ebla tablet copies | cancel-copy`: replicas that are being copied, as the copying servers report them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from ebla.cli.frame.options import TabletId, argument, option
from ebla.cli.frame.render import listing
from ebla.cli.frame.ui import Shown, Ui
from ebla.cli.frame.views import silent_servers
from ebla.wording import age, brief, count, host_of, short, size

if TYPE_CHECKING:
    from ebla.actors.messages import CopyJob
    from ebla.operate.cluster import Cluster
    from ebla.operate.copies import Copies, Ended

LINES_EVERY_S = 5.0
WAITING_SHOWN = 4


async def copies(
    ui: Ui,
    cluster: Cluster,
    watch: Annotated[
        bool, option("--watch", "Show them until no tablet needs a copy, or none begins, or Ctrl-C.")
    ] = False,
) -> Shown:
    """List the copies that run: source, target, amount, speed, remaining time."""
    from ebla.operate import copies

    if watch:
        with _screen(ui) as show:
            seen = await copies.watch(cluster, show)
    else:
        seen = await copies.running(cluster)
    parts: list[Any] = []
    if seen.waiting or seen.tablets_waiting:
        parts = [f"no copy begins: {_counts(seen)}; `ebla check` says why"]
    elif not seen.jobs:
        parts = ["no replica needs a copy" if seen.ended else "no copy is running"]
    elif not watch:
        parts = [_table(seen.jobs)]
    document = {
        "copies": seen.jobs,
        "ended": seen.ended,
        "silent": seen.silent,
        "waiting": seen.waiting,
        "tablets_waiting": seen.tablets_waiting,
    }
    return document, *parts, *silent_servers(seen.silent)


def _counts(seen: Copies) -> str:
    """How many replicas and tablets wait."""
    replicas = len(seen.waiting)
    parts = [count(replicas, "replica waits", "replicas wait") + " for a copy"] if replicas else []
    return ", ".join([*parts, *_lacking(seen)])


def _lacking(seen: Copies) -> list[str]:
    tablets = seen.tablets_waiting
    return [count(tablets, "tablet needs", "tablets need") + " another replica"] if tablets else []


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

Show = Callable[["Copies"], None]


@contextmanager
def _screen(ui: Ui) -> Iterator[Show]:
    if ui.json:
        yield lambda seen: None  # one document at the end has everything
    elif not ui.out.is_terminal:
        yield _Lines(ui).show
    else:
        with _bars(ui) as bars:
            yield bars.show


class _Lines:
    """A line for each copy every few seconds, and one when it has ended."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._printed_at = float("-inf")
        self._known: dict[tuple[str, ...], None] = {}

    def show(self, seen: Copies) -> None:
        import asyncio

        now = asyncio.get_running_loop().time()
        present: dict[tuple[str, ...], None] = dict.fromkeys(
            [*((job.tablet, job.target) for job in seen.jobs), *((w,) for w in seen.waiting)]
        )
        if seen.tablets_waiting:
            present["tablets",] = None
        for each in seen.ended:
            self._ui.print(f"{_title(each.job)}: {_outcome(each)}")
        fresh = any(key not in self._known for key in present)
        self._known = present
        if fresh or now - self._printed_at >= LINES_EVERY_S:
            self._printed_at = now
            for job in seen.jobs:
                self._ui.print(f"{_title(job)}: {_state(job)}")
            if waits := _waits(seen):
                self._ui.print(waits)


@contextmanager
def _bars(ui: Ui) -> Iterator[_Bars]:
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
    """A bar for each copy. The bar of a copy that has ended stays, with the outcome."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._tasks: dict[tuple[str, str], Any] = {}
        self._waiting: Any = None

    def show(self, seen: Copies) -> None:
        for each in seen.ended:
            task = self._tasks[each.job.tablet, each.job.target]
            whole = {"completed": each.job.copied_bytes, "total": each.job.copied_bytes}
            self._progress.update(task, text=_outcome(each), **(whole if each.how == "copied" else {}))
        for job in seen.jobs:
            key = job.tablet, job.target
            if key not in self._tasks:
                self._tasks[key] = self._progress.add_task(_title(job), total=None, text="")
            total = max(job.data_bytes, job.copied_bytes) or None
            self._progress.update(self._tasks[key], completed=job.copied_bytes, total=total, text=_pace(job))
        if self._waiting is not None:
            self._progress.remove_task(self._waiting)
            self._waiting = None
        if waits := _waits(seen):
            self._waiting = self._progress.add_task(waits, total=None, text="")


def _title(job: CopyJob) -> str:
    return f"{job.table_name} {short(job.tablet)} {host_of(job.source)} -> {host_of(job.target)}"


def _outcome(ended: Ended) -> str:
    job = ended.job
    why = f": {brief(ended.why)}" if ended.why else ""
    return f"{ended.how} after {age(job.elapsed_s)}, {size(job.copied_bytes)}{why}"


def _waits(seen: Copies) -> str:
    """A line for what waits, or no text."""
    waiting, more = seen.waiting, len(seen.waiting) - WAITING_SHOWN
    parts = (
        [", ".join(waiting[:WAITING_SHOWN]) + (f" and {more:,} more" if more > 0 else "")] if waiting else []
    )
    parts += _lacking(seen)
    return f"waiting for a copy: {'; '.join(parts)}" if parts else ""


def _state(job: CopyJob) -> str:
    done = f"{size(job.copied_bytes)} of {size(job.data_bytes)}"
    again = "" if job.attempt == 1 else f", attempt {job.attempt}"
    return f"{done}, {_pace(job)}{again}"


def _pace(job: CopyJob) -> str:
    """The phase, and the speed and the remaining time if they are known."""
    parts = [job.phase]
    if job.rate > 0:
        parts.append(f"{size(int(job.rate))}/s")
    if job.eta_s is not None:
        parts.append(f"{age(job.eta_s)} left")
    return ", ".join(parts)


# -- cancel --------------------------------------------------------------------------------------------------


async def cancel_copy(
    cluster: Cluster,
    tablet: TabletId,
    server: Annotated[str | None, argument("SERVER", "Only copies to this host, address or uuid.")] = None,
) -> Shown:
    """Cancel copies of a tablet and delete the copied data. If a copy is still needed, the leader begins again later."""
    from ebla.operate.copies import cancel

    found = await cancel(cluster, tablet, server)
    copies, hosts = count(len(found), "copy", "copies"), ", ".join(host_of(job.target) for job in found)
    return {"cancelled": found}, f"cancelled {copies} of tablet {short(found[0].tablet)} to {hosts}"
