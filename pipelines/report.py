"""Shows the reports of feeds, comparisons and the demo to people."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ebla.actors.messages import RAFT
from ebla.pipelines.outcomes import FeedReport, Sample, TabletDigests, VerifyReport
from ebla.pipelines.sources.check import Checked
from ebla.pipelines.sources.source import Facts
from ebla.show.values import pairs, word
from ebla.wording import count, size

GOOD, BAD, DIM = "green", "bold red", "dim"


class Outage(msgspec.Struct, frozen=True):
    """The pauses of writes to the probed table, which is not the loaded one. The killed node led `led` of its `tablets`. `led_s`:
    the longest time without an acknowledged write on one of these, `others_s` on any other; `stalled` tablets had a pause of
    more than half a second."""

    tablets: int
    led: int
    led_s: float
    others_s: float
    stalled: int
    writes: int
    failed: int


class Kill(msgspec.Struct, frozen=True):
    """The kill of a node, `at_s` after the begin of the load, with `rows` written. Just before, the node led `led` tablets of the
    loaded table, and had replicas of `held`. The other times are from the kill on."""

    slot: str
    at_s: float
    rows: int
    led: int
    held: int
    during_load: bool
    down_s: float
    caught_up_s: float


class Events(msgspec.Struct, frozen=True):
    """The log that was written and followed meanwhile. `records`: acknowledged ones. `lost`: those that a last read lacks;
    `misplaced`: those that it has elsewhere than the writer was told; `repeated`: those that it has twice. `followed`: the reader
    that followed the log saw the same. `pause_s`: the longest time without an acknowledgement. Of `copies` of entries on stores,
    `unsound` are missing or damaged in the end; `copied` were made by the workers on `copied_by`, and nothing was left to be
    repaired `whole_s` after the kill. `errors`: of the writer and of the reader."""

    records: int
    lost: int
    misplaced: int
    repeated: int
    followed: bool
    pause_s: float
    copies: int
    unsound: int
    copied: int
    copied_by: tuple[str, ...]
    whole_s: float | None
    errors: tuple[str, ...] = ()


class DemoReport(msgspec.Struct, frozen=True):
    """`failures`: a sentence for each promise that did not hold."""

    nodes: int
    tablets: int
    replicas: int
    load: FeedReport
    kill: Kill
    outage: Outage
    verify: VerifyReport
    events: Events
    failures: tuple[str, ...]
    phases: dict[str, float]
    seconds: float
    replication: str = RAFT

    @property
    def ok(self) -> bool:
        return not self.failures


# -- sources ---------------------------------------------------------------------------------------------------

COLUMNS_MAX = 40
CELL_MAX = 32
SEPARATORS = {"\t": "tab"}


def facts_line(name: str, facts: Facts) -> str:
    """`people.csv: csv, utf-8, separator ";", decimal comma, 12 KiB`."""
    parts = [facts.format]
    if facts.encoding:
        parts.append(facts.encoding)
    if facts.separator:
        named = SEPARATORS.get(facts.separator, f'"{facts.separator}"')
        parts.append(f"separator {named}")
    if facts.decimal == ",":
        parts.append("decimal comma")
    if facts.compression not in (None, "none"):
        parts.append(str(facts.compression))
    if facts.files > 1:
        parts.append(count(facts.files, "file"))
    if facts.bytes is not None:
        parts.append(size(facts.bytes))
    if facts.left_out:
        parts.append(count(len(facts.left_out), "column") + " without a name left out")
    return f"{name}: {', '.join(parts)}"


def columns_view(checked: Checked, key: Iterable[str], limit: int = COLUMNS_MAX) -> RenderableType:
    """The columns with their types and the first values."""
    keys = set(key)
    shown = list(checked.columns.items())[:limit]
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False)
    for heading in ("column", "type", ""):
        table.add_column(heading, no_wrap=True)
    table.add_column("first values", style=DIM)  # the only one that may become narrower
    for name, kind in shown:
        values = " | ".join(_cut(word(row[name], " | ")) for row in checked.sample[:3])
        first = Text(values, no_wrap=True, overflow="ellipsis")
        table.add_row(Text(_cut(name)), Text(_cut(kind)), Text("key" if name in keys else ""), first)
    more = len(checked.columns) - limit
    return Group(table, Text(f"and {count(more, 'more column')}", DIM)) if more > 0 else table


def rows_view(checked: Checked) -> RenderableType:
    """The numbers of rows, and the first rows that do not fit or repeat a key."""
    lines = [("rows", Text(f"{checked.rows:,}", "bold")), ("fit", Text(f"{checked.fitting:,}"))]
    if checked.unfit:
        lines.append(("do not fit", Text(f"{checked.unfit:,}", BAD)))
    if checked.repeated:
        lines.append(("repeat a key", Text(f"{checked.repeated:,}", BAD)))
    if checked.repeated is None:
        lines.append(("note", Text("too many rows to look for repeated keys")))
    parts: list[RenderableType] = [_grid(lines)]
    troubles = troubles_view(checked)
    return Group(*parts) if troubles is None else Group(*parts, Text(), troubles)


def troubles_view(checked: Checked) -> RenderableType | None:
    """The first rows that do not fit or repeat a key; None if there are none."""
    troubles = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False)
    for heading in ("file", "row", "column", "problem"):
        troubles.add_column(heading, overflow="fold")
    for row in checked.unfit_rows:
        troubles.add_row(row.file, str(row.row), Text(row.column or ""), Text(row.problem))
    for again in checked.repeated_rows:
        problem = f"same key as row {again.earlier_row}"
        if again.file != again.earlier_file:
            problem += f" of {again.earlier_file}"
        troubles.add_row(
            again.file, str(again.row), Text(", ".join(again.key)), Text(f"{problem}: {pairs(again.key)}")
        )
    return troubles if troubles.row_count else None


def _cut(text: str) -> str:
    return text if len(text) <= CELL_MAX else text[: CELL_MAX - 3] + "..."


# -- feed and verify -----------------------------------------------------------------------------------------


def feed_view(report: FeedReport) -> RenderableType:
    took = f"{report.seconds:.{1 if report.seconds >= 1 else 2}f} s"
    lines = [("rows", _figures(f"{report.rows:,}", f"in {took}, {report.rows_per_s:,.0f} rows/s"))]
    if report.rejected:
        lines.append(("present", _figures(f"{report.rejected:,}", "left as they were", GOOD)))
    if report.skipped:
        lines.append(("skipped", _figures(f"{report.skipped:,}", "with values that do not fit", BAD)))
    if report.repeated:
        kept = "first" if report.mode == "insert" else "last"
        text = f"left out for their key; the table has the {kept} row"
        lines.append(("repeated", _figures(f"{report.repeated:,}", text, BAD)))
    if report.engine == "spark":
        tries = "no retries" if report.retries == 0 else f"{report.retries} retried"
        lines.append(("tasks", Text(f"{report.partitions:,}, {tries}")))
    lines.append(("job", Text(report.job)))
    return _panel(f"{report.source} → {report.table}", _grid(lines), True)


def verify_view(report: VerifyReport) -> RenderableType:
    verdict = Text(_verdict(report), GOOD if report.ok else BAD)
    parts: list[RenderableType] = [verdict, Text(), _grid(_comparison(report) + _replicas(report))]
    if report.samples:
        parts += [Text(), _samples(report.samples)]
    for tablet in report.tablets:
        if not tablet.equal:
            parts += [Text(), Text(f"tablet {tablet.tablet}"), _unequal(tablet)]
    return _panel(f"{report.source} = {report.table}?", Group(*parts), report.ok)


def _verdict(report: VerifyReport) -> str:
    if report.missing or report.extra or report.different:
        return "✘ the table differs from its source"
    if report.ok:
        return "✔ the table equals its source"
    return "✘ the table equals its source, but its replicas do not agree"


def _comparison(report: VerifyReport) -> list[tuple[str, Text]]:
    counts = (("missing", report.missing), ("extra", report.extra), ("different", report.different))
    lines = [
        ("rows", _figures(f"{report.source_rows:,}", f"in the source, {report.table_rows:,} in the table")),
        ("by key", _counts(counts)),
    ]
    if report.duplicates:
        text = "with a repeated key in the source; the table keeps one row of each key"
        lines.append(("repeated", _figures(f"{report.duplicates:,}", text)))
    return lines


def _replicas(report: VerifyReport) -> list[tuple[str, Text]]:
    if report.replicas_equal is None:
        return []
    replicas = sum(len(tablet.replicas) for tablet in report.tablets)
    agree = sum(len(tablet.replicas) for tablet in report.tablets if tablet.equal)
    tablets = f"agree, over {count(len(report.tablets), 'tablet')}"
    return [("replicas", _figures(f"{agree} of {replicas}", tablets, GOOD if agree == replicas else BAD))]


def _samples(samples: Iterable[Sample]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for heading in ("trouble", "key", "source", "table"):
        table.add_column(heading, overflow="fold")
    for sample in samples:
        table.add_row(Text(sample.kind, BAD), pairs(sample.key), pairs(sample.source), pairs(sample.table))
    return table


def _unequal(tablet: TabletDigests) -> RenderableType:
    """The digests of a tablet's replicas, or the reason why there are none."""
    if tablet.error is not None:
        return Text(tablet.error, BAD)
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("replica", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("digest", overflow="fold")
    for replica in tablet.replicas:
        rows = "" if replica.rows is None else f"{replica.rows:,}"
        table.add_row(replica.address, rows, Text(replica.digest or replica.error or ""))
    return table


# -- the demo ------------------------------------------------------------------------------------------------


def demo_view(report: DemoReport) -> RenderableType:
    load, kill, outage, checked = report.load, report.kill, report.outage, report.verify
    after_s = kill.caught_up_s - kill.down_s
    figures = [
        (
            "loaded",
            f"{load.rows:,} rows",
            f"in {load.seconds:.1f} s, {load.rows_per_s:,.0f} rows/s, the kill included",
        ),
        ("killed", kill.slot, f"by SIGKILL, {kill.at_s:.1f} s into the load, after {kill.rows:,} rows"),
        (
            "",
            "",
            f"it led {kill.led} of the {report.tablets} tablets of {load.table} and held replicas of {kill.held}",
        ),
        *_pauses(outage),
        ("back", f"{kill.down_s:.1f} s", f"after the kill; all replicas had caught up {after_s:.1f} s later"),
    ]
    counts = (("lost", checked.missing), ("duplicated", checked.extra), ("different", checked.different))
    lines = [
        *((name, _figures(figure, rest) if figure else Text(rest, DIM)) for name, figure, rest in figures),
        *_comparison(checked)[:1],
        ("verified", _counts(counts)),
        *_replicas(checked),
        ("", Text()),
        *_log(report),
    ]
    verdict = (
        Text("✔ nothing was lost, nothing was written twice, nothing was changed", GOOD)
        if report.ok
        else Text("\n".join(f"✘ {failure}" for failure in report.failures), BAD)
    )
    intro = Text(
        f"{report.nodes} Ray nodes, {report.tablets} tablets x {report.replicas} replicas ({report.replication}), "
        "fed and verified by Spark",
        DIM,
    )
    parts: list[RenderableType] = [
        intro,
        Text(),
        _grid(lines),
        Text(),
        verdict,
        Text(f"{report.seconds:.0f} s in all", DIM),
    ]
    return _panel("ebla demo", Group(*parts), report.ok)


def _pauses(outage: Outage) -> list[tuple[str, str, str]]:
    """How many of the probed tablets the killed node led, their longest pause, and that of the others."""
    probes = f"{outage.writes:,} probing writes"
    if not outage.led:
        return [("writes", f"{outage.others_s:.1f} s", f"pause at most; {probes}")]
    return [
        ("", "", f"it led {outage.led} of the {outage.tablets} tablets of a second table, which is probed"),
        ("writes", f"{outage.led_s:.1f} s", "pause at most, on the probed tablets that it led"),
        ("", "", f"{outage.others_s:.1f} s at most on the others; {probes}"),
    ]


def _log(report: DemoReport) -> list[tuple[str, Text]]:
    log = report.events
    counts = (("lost", log.lost), ("misplaced", log.misplaced), ("repeated", log.repeated))
    workers = log.copied_by
    by = f"the worker on {workers[0]}" if len(workers) == 1 else count(len(workers), "worker")
    sound = f"{log.copies - log.unsound:,} of {log.copies:,}"
    copied = f"that {report.kill.slot} lacked, by {by}"
    whole = "" if log.whole_s is None else f"; whole again {log.whole_s:.1f} s after the kill"
    return [
        (
            "log",
            _figures(f"{log.records:,} records", f"appended meanwhile, {log.pause_s:.1f} s pause at most"),
        ),
        ("read", _counts(counts)),
        ("repaired", _figures(count(log.copied, "entry", "entries"), copied)),
        ("copies", _figures(sound, f"are sound{whole}", BAD if log.unsound else GOOD)),
    ]


# -- pieces --------------------------------------------------------------------------------------------------


def _counts(counts: Iterable[tuple[str, int]]) -> Text:
    """Numbers of differences: 0 is good."""
    text = Text()
    for name, number in counts:
        text.append(f"{number:,} {name}   ", GOOD if number == 0 else BAD)
    return text


def _figures(figure: str, rest: str, style: str = "bold") -> Text:
    return Text.assemble((figure, style), " ", rest)


def _grid(lines: Iterable[tuple[str, Text]]) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style=DIM)
    table.add_column(overflow="fold")
    for name, text in lines:
        table.add_row(name, text)
    return table


def _panel(title: str, body: RenderableType, ok: bool) -> Panel:
    return Panel(
        body, title=Text(title, "bold"), border_style=GOOD if ok else BAD, padding=(1, 2), expand=False
    )


def text_of(view: RenderableType, width: int = 100) -> str:
    """The view as plain text, for logs."""
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(view)
    return captured.get()
