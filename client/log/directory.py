"""The logs of a deployment: made, listed, dropped."""

from __future__ import annotations

import msgspec

from ebla.actors.coordination.errors import NotEmpty
from ebla.actors.errors import AlreadyPresent, NotFound
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.records import DEADLINE_S
from ebla.log.options import LogSettings
from ebla.log.reading import Ledgers
from ebla.log.records import LogRecord
from ebla.storage.errors import InvalidArgument

NAME_MAX = 100


def path_of(name: str) -> str:
    """Raises InvalidArgument for a name that no log can have."""
    if not name or len(name) > NAME_MAX or "/" in name or name in (".", "..") or not name.isprintable():
        raise InvalidArgument(
            f"a log's name has 1 to {NAME_MAX} printable characters without '/', not {name[:NAME_MAX]!r}"
        )
    return f"{paths.LOGS}/{name}"


async def create(ledgers: Ledgers, name: str, settings: LogSettings) -> None:
    """Raises AlreadyPresent if there is a log with other settings; with the same it is a repetition."""
    path = path_of(name)
    record = LogRecord(settings, ledgers.world.clock.wall_us())
    try:
        await ledgers.logs.create(path, record)
    except AlreadyPresent:
        found = await ledgers.logs.get(path)
        if found is None or found.settings != settings:
            raise AlreadyPresent(
                f"there is a log {name!r} with other settings; db.log({name!r}) opens it", what=name
            ) from None


async def names(ledgers: Ledgers) -> list[str]:
    try:
        return await ledgers.session.nodes.children(paths.LOGS, deadline_s=DEADLINE_S)
    except NotFound:
        return []


async def drop(ledgers: Ledgers, name: str) -> None:
    """Delete a log with all of its records. Its writer is fenced."""
    path = path_of(name)

    def emptied(found: LogRecord) -> LogRecord:
        ids = (*found.deleting, *(each.ledger for each in found.ledgers))
        return msgspec.structs.replace(found, ledgers=(), deleting=ids)

    await ledgers.log(name)  # or NotFound
    while True:
        await ledgers.logs.change(path, emptied)
        await ledgers.sweep(name)
        found = await ledgers.logs.find(path)
        if found is None:
            return
        record, version = found
        if record.ledgers or record.deleting:  # a writer has begun a ledger meanwhile
            continue
        try:
            if await ledgers.logs.delete(path, version):
                return
        except NotEmpty as error:
            raise InvalidArgument(
                f"the node {path} has children, which are not ebla's: delete them first"
            ) from error
