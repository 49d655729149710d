"""`ebla log append | cat | tail`."""

from __future__ import annotations

import base64
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from ebla.cli.frame.connection import within
from ebla.cli.frame.options import argument, option
from ebla.cli.frame.problems import Stopped
from ebla.cli.frame.ui import Shown, Ui
from ebla.cli.logs.logs import LogName, log_of, named
from ebla.wording import count

if TYPE_CHECKING:
    from ebla.log.awaited import Entry, LogWriter
    from ebla.operate.cluster import Cluster

LAST = 10  # records that `tail` prints
SHOWN_EVERY = 1000  # records of `cat`
Positions = Annotated[
    bool, option("-p --positions", "Print each record's position before it, and a tab between.")
]


# -- append --------------------------------------------------------------------------------------------------


async def append(
    ui: Ui,
    cluster: Cluster,
    name: LogName,
    text: Annotated[
        list[str] | None, argument("TEXT", "A record each. Without them: each line of standard input.")
    ] = None,
) -> Shown:
    """Append records, and show their positions.

    The command becomes the log's one writer: a writer that another process has open is fenced, and gets LogFenced at its
    next append. What it was told to be in the log stays.

    ebla log append events "first record" "second record"
    """
    cluster.client.display = None  # this command shows the progress
    log = await log_of(cluster, name)
    writer: LogWriter | None = None
    first, appended = -1, 0
    typed = not text and ui.interactive  # a bar would be in the way
    with nullcontext() if typed else ui.working(f"append {name}") as progress:
        try:
            async for records in _records(ui, text):
                writer = writer or await log.writer()
                positions = await writer.append_many(records)
                first = positions.start if appended == 0 else first
                appended += len(positions)
                if progress is not None:
                    progress.step(count(appended, "record"))
        except Exception as error:
            raise _with_appended(error, first, appended) from error
        finally:
            if writer is not None:
                await writer.close()
    document = {"log": name, "first": first if appended else None, "records": appended}
    return (
        document,
        f"appended {_places(first, appended)}" if appended else "the input is empty; nothing was appended",
    )


async def _records(ui: Ui, text: list[str] | None) -> AsyncIterator[list[bytes]]:
    if text:
        yield [each.encode(errors="surrogateescape") for each in text]  # any bytes
        return
    from ebla.cli.logs import stdin

    if ui.interactive:
        ui.note("one record per line; Ctrl-D ends")
    async for lines in stdin.batches():
        yield lines


def _places(first: int, appended: int) -> str:
    last = first + appended - 1
    at = f"at position {first:,}" if appended == 1 else f"at positions {first:,} to {last:,}"
    return f"{count(appended, 'record')} {at}"


def _with_appended(error: Exception, first: int, appended: int) -> Exception:
    """The error, with what was acknowledged before."""
    from ebla.errors import EblaError

    if not appended or not isinstance(error, EblaError):
        return error
    text = f"{error.message}; before that, {_places(first, appended)} were appended"
    made = type(error)(text, **error.values())
    made.possibly_applied = error.possibly_applied
    return made


# -- cat and tail --------------------------------------------------------------------------------------------


async def cat(
    ui: Ui,
    cluster: Cluster,
    name: LogName,
    start: Annotated[
        int | None, option("--from POSITION", "Begin here (default: the first that is kept).", min=0)
    ] = None,
    limit: Annotated[int | None, option("-n --limit N", "Print at most N records.", min=1)] = None,
    positions: Positions = False,
) -> None:
    """Print the records of a log, a line each, up to the last one that is acknowledged when the command begins.

    Text is printed as it is; text with line breaks or control characters as a JSON string, other bytes as 0x00ff. With
    --json, each line is a document with the position and the text, or the bytes as base64.
    """
    log = await log_of(cluster, name)
    printed = 0
    with named(name), nullcontext() if sys.stdout.isatty() else ui.working(f"read {name}") as progress:
        async for entry in log.read(start, limit=limit):
            _print(ui, entry, positions)
            printed += 1
            if progress is not None and printed % SHOWN_EVERY == 0:
                progress.step(count(printed, "record"))


def tail(
    ui: Ui,
    name: LogName,
    lines: Annotated[int, option("-n --lines N", "How many records.", min=0)] = LAST,
    follow: Annotated[
        bool, option("-f --follow", "Then print new records as they come, until Ctrl-C.")
    ] = False,
    positions: Positions = False,
) -> None:
    """Print the last records of a log, as `ebla log cat` does."""

    async def work(cluster: Cluster) -> None:
        from ebla.operate.logs import end_of

        log = await log_of(cluster, name)
        first, end = await end_of(cluster.ledgers, name)
        start = max(first, end - lines)
        if start == end and not follow:
            return
        with named(name):
            async for entry in log.read(start, follow=follow, limit=None if follow else end - start):
                _print(ui, entry, positions)
                if follow:
                    sys.stdout.flush()

    try:
        within(ui, work)
    except KeyboardInterrupt:
        if follow:
            raise Stopped from None
        raise


def _print(ui: Ui, entry: Entry, positions: bool) -> None:
    if ui.json:
        line = msgspec.json.encode(_document(entry)).decode()
    else:
        line = f"{entry.position}\t{as_line(entry.data)}" if positions else as_line(entry.data)
    sys.stdout.write(line + "\n")


def _document(entry: Entry) -> dict[str, Any]:
    try:
        return {"position": entry.position, "text": entry.data.decode()}
    except UnicodeDecodeError:
        return {"position": entry.position, "base64": base64.b64encode(entry.data).decode()}


def as_line(data: bytes) -> str:
    """A record as one line for people."""
    from ebla.show import values

    try:
        text = data.decode()
    except UnicodeDecodeError:
        return values.text(data)
    return text if text.replace("\t", " ").replace("\xa0", " ").isprintable() else values.word(text)
