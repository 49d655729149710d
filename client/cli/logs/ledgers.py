"""`ebla ledger list | show | check | give-up`: the ledgers of which logs are made, and what their stores have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs

from ebla.cli.frame.amounts import when
from ebla.cli.frame.connection import within
from ebla.cli.frame.losing import confirm_loss
from ebla.cli.frame.options import argument, option
from ebla.cli.frame.problems import FAILED
from ebla.cli.frame.render import facts, listing
from ebla.cli.frame.ui import Shown, Ui
from ebla.wording import brief, count, host_of, short, size

if TYPE_CHECKING:
    from ebla.actors.ledger.handles.checking import Held
    from ebla.actors.ledger.metadata import Metadata
    from ebla.operate.cluster import Cluster
    from ebla.operate.ledgers import Checked

LedgerId = Annotated[int, argument("ID", "The ledger's number; `ebla ledger list` shows it.")]
RANGES_SHOWN = 6


async def list_ledgers(cluster: Cluster) -> Shown:
    """List the ledgers: state, log, quorums (ensemble, write quorum, ack quorum), entries and bytes of one copy.

    Entries and bytes are decided when a ledger is closed; `ebla ledger show` asks the stores of an open one.
    """
    found = await cluster.ledgers.every()
    rows = (
        (
            each.ledger,
            each.log or "-",
            each.state,
            _quorums(each),
            len(each.segments),
            each.last + 1 if each.closed else None,
            size(each.length) if each.closed else "-",
        )
        for each in found
    )
    headers = ("LEDGER>", "LOG", "STATE", "QUORUMS", "SEGMENTS>", "ENTRIES>", "SIZE>")
    document = {"ledgers": [_document(each) for each in found]}
    return document, listing(headers, rows) if found else "no ledgers"


def _quorums(found: Metadata) -> str:
    return f"{found.ensemble}/{found.write_quorum}/{found.ack_quorum}"


def _document(found: Metadata) -> dict[str, Any]:
    document = structs.asdict(found)
    document["segments"] = [structs.asdict(segment) for segment in found.segments]
    return document


async def _metadata(cluster: Cluster, ledger: int) -> Metadata:
    from ebla.errors import NotFound

    try:
        return await cluster.ledgers.registry.read(ledger)
    except NotFound as error:
        raise NotFound(f"there is no ledger {ledger}; see `ebla ledger list`", what="ledger") from error


async def show(cluster: Cluster, ledger: LedgerId) -> Shown:
    """Show a ledger: state, quorums, last entry, length, and the stores of each of its segments."""
    from ebla.actors.errors import Unavailable
    from ebla.operate.ledgers import addresses

    found = await _metadata(cluster, ledger)
    where = await addresses(cluster.ledgers)
    last: int | None = None
    error = None
    try:
        last = await cluster.ledgers.reader.last_entry(found)
    except Unavailable as refused:
        error = refused.message
    document = _document(found) | {"last": last, "error": error}
    for segment in document["segments"]:
        segment["addresses"] = [where.get(store) for store in segment["stores"]]
    shown = facts(
        (
            ("ledger", f"{found.ledger}"),
            ("log", found.log or "-"),
            ("state", found.state),
            ("stores", f"{found.ensemble}, each entry on {found.write_quorum}"),
            ("acknowledged", f"when {found.ack_quorum} of them have synced it"),
            ("last entry", _last(found, last)),
            ("length", size(found.length) if found.closed else "decided when the ledger is closed"),
            ("created", when(found.created_us)),
        )
    )
    rows = ((each.first, ", ".join(_host(store, where) for store in each.stores)) for each in found.segments)
    segments = listing(("FROM ENTRY>", "STORES"), rows)
    return document, shown, "", segments, *([f"  {error}"] if error else [])


def _last(found: Metadata, last: int | None) -> str:
    if last is None:
        return "not known now"
    text = f"{last:,}" if last >= 0 else "none: it is empty"
    return text if found.closed else f"{text} (acknowledged so far)"


def _host(store: str, where: dict[str, str]) -> str:
    return host_of(where[store]) if store in where else short(store)


# -- check ---------------------------------------------------------------------------------------------------


def check(ui: Ui, ledger: LedgerId) -> None:
    """Verify every copy of every entry at its store. Exit status 0: all are there and sound, 1: not.

    A store that should have an entry and does not is named, and so is a store whose copy fails its checksum, or that does
    not answer. The other stores have the entry, unless the command says that it is lost. Also shown: whether the ledger is
    marked for repair, and why it is not repaired yet.
    """
    with ui.working(f"ledger check {ledger}") as progress:

        async def work(cluster: Cluster) -> tuple[Checked, dict[str, str]]:
            from ebla.operate import ledgers

            await _metadata(cluster, ledger)
            checked = await ledgers.check(cluster.ledgers, ledger, progress.step)
            return checked, await ledgers.addresses(cluster.ledgers)

        checked, where = within(ui, work)
    ui.show(_checked_document(checked, where), *_checked_parts(checked, where))
    if not checked.sound:
        raise typer.Exit(FAILED)


def _checked_document(checked: Checked, where: dict[str, str]) -> dict[str, Any]:
    stores = [
        {
            "first": held.fragment.first,
            "last": held.fragment.last,
            "store": held.store,
            "address": where.get(held.store),
            "entries": held.wanted,
            "missing": held.absent,
            "damaged": held.damaged,
            "error": held.error,
            "sound": held.sound,
        }
        for held in checked.stores
    ]
    return structs.asdict(checked) | {"sound": checked.sound, "stores": stores}


def _checked_parts(checked: Checked, where: dict[str, str]) -> list[Any]:
    copies = sum(held.wanted for held in checked.stores)
    told = f"ledger {checked.ledger}, {checked.state}: {count(checked.last + 1, 'entry', 'entries')}"
    if checked.given_up:
        ranges = ", ".join(f"{first:,}-{last:,}" for first, last in checked.given_up)
        told += f", without {ranges}, which an operator has given up"
    if checked.sound:
        sound = f"{told}, all {count(copies, 'copy', 'copies')} are there and sound"
        return [sound, *_mark_parts(checked, where)]
    rows = [
        (
            f"{held.fragment.first:,}-{held.fragment.last:,}",
            _host(held.store, where),
            held.wanted,
            len(held.absent),
            len(held.damaged),
            _remark(held),
        )
        for held in checked.stores
        if not held.sound
    ]
    headers = ("ENTRIES", "STORE", "SHOULD HAVE>", "MISSING>", "DAMAGED>", "REMARK")
    parts: list[Any] = [f"{told}, and not every copy is sound", "", listing(headers, rows), ""]
    if not rows:
        parts = [f"{told}, all {count(copies, 'copy', 'copies')} of them are there and sound"]
    if checked.unknown:
        known = (
            f"checked up to entry {checked.last:,}"
            if checked.last >= 0
            else "no entry is known to be written"
        )
        parts.append(f"{known}: {checked.unknown}")
    if checked.lost:
        remedy = f"`ebla ledger give-up {checked.ledger}` accepts the loss"
        if any(held.error is not None for held in checked.stores):
            remedy = "bring the stores that do not answer back"
        parts.append(f"no sound copy was found of {_ranges(checked.lost)}: {remedy}")
    elif not checked.unknown:
        parts.append("every entry has a sound copy: nothing is lost")
    return [*parts, *_mark_parts(checked, where)]


def _mark_parts(checked: Checked, where: dict[str, str]) -> list[str]:
    mark = checked.mark
    if mark is None:
        return (
            []
            if checked.sound
            else ["it is not marked for repair yet; the next check of all ledgers marks it"]
        )
    stores = ", ".join(_host(store, where) for store in mark.stores)
    by = f"; {host_of(mark.worker)} repairs it now" if mark.worker else ""
    parts = [f"marked for repair since {when(mark.since_us)}, as {stores} lacks entries{by}"]
    return [*parts, f"not repaired yet: {mark.reason}"] if mark.reason else parts


def _remark(held: Held) -> str:
    parts = [f"missing {_ranges(held.absent)}"] if held.absent else []
    parts += [f"damaged {_ranges(held.damaged)}"] if held.damaged else []
    parts += [brief(held.error)] if held.error else []
    return "; ".join(parts)


def _ranges(numbers: tuple[int, ...]) -> str:
    from ebla.operate.ledgers import ranges

    found = ranges(numbers)
    shown = [f"{first:,}" if first == last else f"{first:,}-{last:,}" for first, last in found[:RANGES_SHOWN]]
    more = len(found) - RANGES_SHOWN
    return ", ".join(shown) + (f" and {more} more ranges" if more > 0 else "")


# -- losses --------------------------------------------------------------------------------------------------


def give_up(
    ui: Ui,
    ledger: LedgerId,
    yes: Annotated[
        str | None, option("--yes-i-lose-data ID", "The ledger's number, instead of typing it at the prompt.")
    ] = None,
) -> Shown:
    """Accept that entries are LOST: those of which all stores answer, and none has a sound copy. The log goes on without them.

    Refused while a store that should have some of them does not answer; see `ebla nodes forget --accept-loss`. The ledger keeps a
    record of what was given up, and reads of these entries fail.
    """
    with ui.working(f"ledger give-up {ledger}"):
        lost = within(ui, lambda cluster: _give_up(ui, cluster, ledger, yes))
    shown = ", ".join(f"{first:,}" if first == last else f"{first:,}-{last:,}" for first, last in lost)
    text = f"entries {shown} of ledger {ledger} are given up" if lost else "every entry has a sound copy"
    return {"ledger": ledger, "lost": lost}, text


async def _give_up(ui: Ui, cluster: Cluster, ledger: int, yes: str | None) -> list[tuple[int, int]]:
    from ebla.operate import ledgers

    found = await _metadata(cluster, ledger)
    lost = await ledgers.without_copies(cluster.ledgers, ledger)
    if lost:
        log = f" of log {found.log!r}" if found.log else ""
        numbers = ", ".join(f"{first:,}-{last:,}" for first, last in lost[:RANGES_SHOWN])
        more = ", ..." if len(lost) > RANGES_SHOWN else ""
        shown = [f"LOST, for no store has a sound copy: entries {numbers}{more} of ledger {ledger}{log}"]
        confirm_loss(ui, "ledger", str(ledger), yes, shown, "number")
        await ledgers.give_up(cluster.ledgers, ledger, lost)
    return lost
