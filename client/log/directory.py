"""The logs of a deployment: made, listed, dropped."""

from __future__ import annotations

from ebla.actors.coordination.errors import NotEmpty
from ebla.actors.errors import AlreadyPresent, NotFound
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.records import DEADLINE_S
from ebla.log.options import LogSettings
from ebla.log.reading import Ledgers
from ebla.log.records import LogRecord, dropped
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
    while True:
        try:
            await ledgers.logs.create(path, LogRecord(settings, ledgers.world.clock.wall_us()))
            return
        except AlreadyPresent:
            found = await ledgers.logs.get(path)
        if found is None or found.dropped:
            await _delete(ledgers, name)
            continue
        if found.settings == settings:
            return
        raise AlreadyPresent(
            f"there is a log {name!r} with other settings; db.log({name!r}) opens it", what=name
        )


async def names(ledgers: Ledgers) -> list[str]:
    try:
        return await ledgers.session.nodes.children(paths.LOGS, deadline_s=DEADLINE_S)
    except NotFound:
        return []


async def drop(ledgers: Ledgers, name: str) -> None:
    """Delete a log with all of its records, or go on where another client has ended. Its writer is fenced."""
    await ledgers.logs.change(path_of(name), dropped)
    await _delete(ledgers, name)


async def _delete(ledgers: Ledgers, name: str) -> None:
    """Delete what is left of a dropped log. Several clients may do so: a log that one of them makes again meanwhile stays."""
    path = path_of(name)
    while (found := await ledgers.logs.find(path)) is not None and found[0].dropped:
        record, version = found
        try:
            if record.deleting:
                await ledgers.sweep(name)
            elif await ledgers.logs.delete(path, version):
                return
        except NotFound:  # another client has finished
            return
        except NotEmpty as error:
            raise InvalidArgument(
                f"the node {path} has children, which are not ebla's: delete them first"
            ) from error
