"""`ebla log create | list | describe | trim | delete`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import structs

from ebla.cli.frame import completion
from ebla.cli.frame.amounts import bytes_of, seconds, when
from ebla.cli.frame.connection import within
from ebla.cli.frame.options import Yes, argument, option
from ebla.cli.frame.render import facts, listing
from ebla.cli.frame.ui import Shown, Ui
from ebla.wording import command, count, host_of, short, size

if TYPE_CHECKING:
    from ebla.log.awaited import Log
    from ebla.log.options import LogSettings
    from ebla.operate.cluster import Cluster
    from ebla.operate.logs import LogState, Part
    from ebla.operate.waiting import Progress

LogName = Annotated[str, argument("NAME", "The log.", autocompletion=completion.logs)]
Ensemble = Annotated[
    int | None, option("--ensemble N", "Stores over which its records are spread (default: 3).", min=1)
]
WriteQuorum = Annotated[
    int | None, option("--write-quorum N", "Stores that get each record (default: 3).", min=1)
]
AckQuorum = Annotated[
    int | None,
    option("--ack-quorum N", "Stores that have synced a record when it is acknowledged (default: 2).", min=1),
]
Retain = Annotated[
    str | None, option("--retain TIME", "Delete records older than this: 7d, 12h (default: keep all).")
]
RetainBytes = Annotated[
    str | None,
    option("--retain-bytes SIZE", "Delete the oldest records beyond this size: 10GiB (default: keep all)."),
]
RollBytes = Annotated[
    str | None, option("--roll-bytes SIZE", "Begin a new ledger at this size (default: 64MiB).")
]
Roll = Annotated[str | None, option("--roll TIME", "Begin a new ledger at this age (default: 1h).")]


async def log_of(cluster: Cluster, name: str) -> Log:
    with named(name):
        return await cluster.database.log(name)


@contextmanager
def named(name: str) -> Iterator[None]:
    """Say what the command line does about a log that does not exist, or that is deleted meanwhile."""
    from ebla.errors import NotFound

    try:
        yield
    except NotFound as error:
        raise NotFound(
            f"there is no log {name!r}; see `ebla log list`, or make it: {command('log create', name)}",
            what="log",
        ) from error


async def create(
    ui: Ui,
    cluster: Cluster,
    progress: Progress,
    name: LogName,
    ensemble: Ensemble = None,
    write_quorum: WriteQuorum = None,
    ack_quorum: AckQuorum = None,
    retain: Retain = None,
    retain_bytes: RetainBytes = None,
    roll_bytes: RollBytes = None,
    roll: Roll = None,
) -> Shown:
    """Create a log. With the settings of a log that exists, nothing is changed.

    The first log of a deployment gives each host a ledger store, which takes some seconds. Old records are deleted a ledger
    at a time, so some stay longer than --retain and --retain-bytes say.

    ebla log create events --retain 7d --retain-bytes 10GiB
    """
    from ebla.errors import AlreadyPresent
    from ebla.operate.logs import state_of

    given: dict[str, Any] = {
        "ensemble": ensemble,
        "write_quorum": write_quorum,
        "ack_quorum": ack_quorum,
        "retain_s": None if retain is None else seconds(retain, "--retain"),
        "retain_bytes": None if retain_bytes is None else bytes_of(retain_bytes, "--retain-bytes"),
        "roll_bytes": None if roll_bytes is None else bytes_of(roll_bytes, "--roll-bytes"),
        "roll_s": None if roll is None else seconds(roll, "--roll"),
    }
    cluster.client.display = None  # this command shows the progress
    made = not await _is_there(cluster, name)
    progress.step("starting ledger stores, if there are none")
    try:
        await cluster.database.create_log(name, **given)
    except AlreadyPresent as error:
        raise AlreadyPresent(
            f"there is a log {name!r} with other settings; {command('log describe', name)} shows them",
            what="log",
        ) from error
    state = await state_of(cluster.ledgers, name)
    document = {"created": made, "log": document_of(state, {})}
    if not made:
        return document, f"log {name} exists already, with these settings; nothing was changed"
    able = sum(not store.read_only for store in await cluster.ledgers.registry.stores())
    if able < state.settings.ensemble:
        ui.warn(
            f"{count(able, 'ledger store takes', 'ledger stores take')} records, and this log needs {state.settings.ensemble} to "
            "begin a ledger; see `ebla nodes`"
        )
    return document, f"created log {name}: {_quorums(state.settings)}"


async def _is_there(cluster: Cluster, name: str) -> bool:
    from ebla.errors import NotFound

    try:
        await cluster.database.log(name)
    except NotFound:
        return False
    return True


def _quorums(settings: LogSettings) -> str:
    spread = f" of {settings.ensemble}" if settings.ensemble > settings.write_quorum else ""
    stores = f"each record on {settings.write_quorum}{spread} stores"
    return f"{stores}, acknowledged when {settings.ack_quorum} have synced it"


async def list_logs(cluster: Cluster) -> Shown:
    """List the logs: first and next position, records, ledgers, size of one copy, and whether a writer has it open."""
    from ebla.errors import NotFound
    from ebla.health.survey import gathered
    from ebla.operate.logs import state_of

    async def one(name: str) -> LogState | None:
        try:
            return await state_of(cluster.ledgers, name)
        except NotFound:  # deleted meanwhile
            return None

    names = await cluster.database.logs()
    found = [each for each in await gathered([one(name) for name in names], 8) if each is not None]
    rows = (
        (each.name, each.first, each.end, each.records, len(each.ledgers), size(each.bytes), each.writer)
        for each in found
    )
    headers = ("LOG", "FIRST>", "NEXT>", "RECORDS>", "LEDGERS>", "SIZE>", "WRITER")
    document = {"logs": [document_of(each, {}) for each in found]}
    if not found:
        return document, "no logs"
    unknown = [f"log {each.name}: {_positions(each)}: {each.unknown}" for each in found if each.unknown]
    return document, listing(headers, rows), *(["", *unknown] if unknown else [])


async def describe(cluster: Cluster, name: LogName) -> Shown:
    """Show a log's settings, and its ledgers: state, first position, entries, bytes of one copy, and stores."""
    from ebla.operate.ledgers import addresses
    from ebla.operate.logs import WRITER_TEXTS, state_of

    await log_of(cluster, name)
    state = await state_of(cluster.ledgers, name)
    where = await addresses(cluster.ledgers)
    settings = state.settings
    kept = [f"for {settings.retain_s:,.0f} s"] if settings.retain_s is not None else []
    kept += [f"up to {size(settings.retain_bytes)}"] if settings.retain_bytes is not None else []
    shown = facts(
        (
            ("log", state.name),
            ("positions", _positions(state)),
            ("stores", _quorums(settings)),
            ("records are kept", " and ".join(kept) or "until they are trimmed"),
            ("a ledger ends", f"at {size(settings.roll_bytes)} or after {settings.roll_s:,.0f} s"),
            ("writer", WRITER_TEXTS[state.writer]),
            ("created", when(state.created_us)),
        )
    )
    rows = ((p.ledger, p.state, p.first, p.entries, size(p.bytes), _hosts(p, where)) for p in state.ledgers)
    ledgers = listing(("LEDGER>", "STATE", "FIRST>", "ENTRIES>", "SIZE>", "STORES"), rows)
    errors = [f"  ledger {part.ledger}: {part.error}" for part in state.ledgers if part.error]
    return document_of(state, where), shown, *(["", ledgers] if state.ledgers else []), *errors


def _positions(state: LogState) -> str:
    if state.end is None:
        return f"{state.first:,} to before {state.known_end:,}, and the end is not known"
    return f"{state.first:,} to before {state.end:,}: {state.records:,} records"


def _hosts(part: Part, where: dict[str, str]) -> str:
    return ", ".join(host_of(where[store]) if store in where else short(store) for store in part.stores)


def document_of(state: LogState, where: dict[str, str]) -> dict[str, Any]:
    """A log for `--json`. `where`: addresses of stores, which are added."""
    document = structs.asdict(state)
    document["settings"] = structs.asdict(state.settings)
    document["ledgers"] = [
        structs.asdict(part) | ({"addresses": [where.get(store) for store in part.stores]} if where else {})
        for part in state.ledgers
    ]
    return document


async def trim(
    cluster: Cluster,
    name: LogName,
    before: Annotated[
        int, option("--before POSITION", "The first position that is kept.", min=0, show_default=False)
    ],
) -> Shown:
    """Delete the records before a position, for good. Their space is freed a ledger at a time."""
    log = await log_of(cluster, name)
    await log.trim(before)
    record = await cluster.ledgers.log(name)
    document = {"log": name, "first": record.trimmed}
    return document, f"log {name} begins at position {record.trimmed:,}"


def delete(ui: Ui, name: LogName, yes: Yes = False) -> Shown:
    """Delete a log with all its records, for good. Its writer is fenced."""

    async def work(cluster: Cluster) -> None:
        from ebla.operate.logs import state_of

        if not await _is_there(cluster, name):
            with named(name):
                await cluster.database.drop_log(name)  # finishes a deletion that was interrupted
            return
        state = await state_of(cluster.ledgers, name)
        records = "records" if state.records is None else count(state.records, "record")
        ui.confirm(f"Delete log {name} and all its {records} ({size(state.bytes)}), for good?", yes)
        await cluster.database.drop_log(name)

    within(ui, work)
    return {"deleted": True, "log": name}, f"deleted log {name}"
