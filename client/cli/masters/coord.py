"""`ebla coord ls | get | set | rm | sessions`: read and change the coordination namespace by hand."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Annotated, Any

from ebla.cli.frame.connection import within
from ebla.cli.frame.options import Yes, argument, option
from ebla.cli.frame.render import facts, listing
from ebla.cli.frame.ui import Shown, Ui
from ebla.operate.naming import Refused
from ebla.wording import age, brief, command, count, short, size

if TYPE_CHECKING:
    from ebla.coordination.awaited import Node, Session
    from ebla.operate.cluster import Cluster

TOGETHER = 64  # nodes that are read at the same time
SESSION_S = 10.0
ROOT = "/"
DELETED_TOGETHER = 99  # a change has 100 operations at most, and one of them compares the version
ATTEMPTS_MAX = 20

OWN = "/ebla"  # below it ebla keeps its logs, see actors/ledger/shared/paths.py
LOST = {
    f"{OWN}/logs/": "this log with all of its records",
    f"{OWN}/ledgers/": "this ledger with all of its records",
    f"{OWN}/stores/": "what ebla knows of ledger stores",
    f"{OWN}/repair/": "what ebla knows of the repair of ledgers",
    f"{OWN}/counted": "the age of old records, which then stay for longer than the settings of their logs say",
    f"{OWN}/": "every log with all of its records",
}

Path = Annotated[str, argument("PATH", "The node, such as /jobs/report.")]
Version = Annotated[int | None, option("--version N", "Only if the node still has this version.", min=1)]

Force = Annotated[bool, option("--force", f"Also a node of ebla itself, at or below {OWN}.")]


async def ls(
    cluster: Cluster,
    path: Annotated[str, argument("PATH", "The node.", show_default=True)] = ROOT,
) -> Shown:
    """List the children of a node: version, number of children, size, and the session whose end deletes them."""
    found = await _children(cluster, path)
    rows = (
        (
            node.path.rpartition("/")[2],
            node.version,
            node.children,
            size(len(node.data)),
            short(node.owner) if node.owner else "",
        )
        for node in found
    )
    table = listing(("NAME", "VERSION>", "CHILDREN>", "SIZE>", "SESSION"), rows)
    document = {"path": path, "nodes": [_document(node) for node in found]}
    return document, table if found else f"{path} has no children"


async def _children(cluster: Cluster, path: str) -> list[Node]:
    from ebla.health.survey import gathered

    nodes = cluster.database.coordination
    names = await nodes.children(path)
    found: list[Node] = []
    for at in range(0, len(names), TOGETHER):
        some = [nodes.get(_below(path, name)) for name in names[at : at + TOGETHER]]
        found += [node for node in await gathered(some, TOGETHER) if node is not None]
    return found


async def get(
    ui: Ui,
    cluster: Cluster,
    path: Path,
    raw: Annotated[bool, option("--raw", "Print its data only, unchanged.")] = False,
) -> Shown | None:
    """Show a node: its data, version, children and session."""
    node = await _node(cluster, path)
    if raw and not ui.json:
        sys.stdout.buffer.write(node.data)
        return None
    parts = (
        ("path", node.path),
        ("data", _shown(node.data)),
        ("version", str(node.version)),
        ("created at", str(node.created)),
        ("children", node.children),
        ("session", node.owner or "none: it is permanent"),
    )
    return _document(node), facts(parts)


async def _node(cluster: Cluster, path: str) -> Node:
    from ebla.errors import NotFound

    node = await cluster.database.coordination.get(path)
    if node is None:
        above = path.rpartition("/")[0] or ROOT
        raise NotFound(f"there is no node {path}; see {command('coord ls', above)}", what=path)
    return node


async def put(
    ui: Ui,
    cluster: Cluster,
    path: Path,
    data: Annotated[str, argument("DATA", "The new data, as text.")],
    version: Version = None,
    create: Annotated[
        bool, option("--create", "Create the node, and the nodes above it, if it is missing.")
    ] = False,
    force: Force = False,
    yes: Yes = False,
) -> Shown:
    """Set the data of a node."""
    if lost := _lost(path, force):
        ui.confirm(f"Set the data of {path}? With other data than ebla's this loses {lost}, for good.", yes)
    async with await _session(cluster) as session:
        # An argument that is not valid text stands for the bytes that were typed.
        made, new = await _put(session, path, data.encode(errors="surrogateescape"), version, create)
    document = {"path": path, "created": made, "version": new}
    return document, f"{'created' if made else 'set'} {path}: version {new}"


async def _put(
    session: Session, path: str, data: bytes, version: int | None, create: bool
) -> tuple[bool, int]:
    from ebla.errors import AlreadyPresent, NotFound

    while True:
        try:
            return False, await session.set(path, data, version=version)
        except NotFound as error:
            if not create:
                raise NotFound(f"there is no node {path}; --create creates it", what=path) from error
        try:
            return True, (await session.create(path, data, parents=True)).version
        except AlreadyPresent:
            continue  # another client has created it meanwhile


def _lost(path: str, force: bool) -> str | None:
    """What a change of one of ebla's own nodes loses; None of another node. Raises Refused without `force`."""
    lost = (
        LOST[f"{OWN}/"] if path == OWN else next((LOST[each] for each in LOST if path.startswith(each)), None)
    )
    if lost is not None and not force:
        raise Refused(
            f"{path} is ebla's own, and a change by hand may lose {lost}; nothing was changed",
            hint="`ebla log delete`, `ebla autorecovery` and `ebla nodes forget` change logs, repairs and stores; --force changes "
            "the node all the same",
        )
    return lost


def rm(
    ui: Ui,
    path: Path,
    version: Version = None,
    recursive: Annotated[
        bool, option("-r --recursive", "Also delete every node below it, deepest first.")
    ] = False,
    force: Force = False,
    yes: Yes = False,
) -> Shown:
    """Delete a node. This may release a lock or end a membership.

    With -r up to 99 nodes are deleted in one change, more nodes in several. With --version the command stops at the first
    change that finds another version of the node.
    """
    from ebla.errors import InvalidArgument

    if path == ROOT:
        raise InvalidArgument("the root cannot be deleted; name a node below it, see `ebla coord ls`")

    lost = _lost(path, force)

    async def work(cluster: Cluster) -> int:
        node = await _node(cluster, path)
        below = " and everything below it" if recursive and node.children else ""
        if lost:
            ui.confirm(f"Delete {path}{below}? This loses {lost}, for good.", yes)
        elif below:
            ui.confirm(f"Delete {path}{below}?", yes)
        async with await _session(cluster) as session:
            if recursive:
                return await _delete_tree(session, path, version)
            await session.delete(path, version=version)
            return 1

    deleted = within(ui, work)
    return {"path": path, "deleted": deleted}, f"deleted {count(deleted, 'node')}"


async def _delete_tree(session: Session, path: str, version: int | None) -> int:
    """Delete the nodes deepest first. If other clients create or delete nodes meanwhile, list them again."""
    from ebla.coordination.awaited import Check, Delete
    from ebla.errors import NotEmpty, NotFound, VersionMismatch

    deleted = attempts = 0
    while True:
        attempts += 1
        tree = [*await _below_all(session, path), path]
        try:
            for at in range(0, len(tree), DELETED_TOGETHER):
                doomed = tree[at : at + DELETED_TOGETHER]
                await session.change(Check(path, version), *map(Delete, doomed))
                deleted += len(doomed)
        except (NotFound, NotEmpty):
            if attempts == ATTEMPTS_MAX:
                raise
        except VersionMismatch as error:
            if not deleted:
                raise
            text = f"{error.message}; {count(deleted, 'node')} below it had been deleted by then"
            raise VersionMismatch(text, **error.values()) from error
        else:
            return deleted


async def _below_all(session: Session, path: str) -> list[str]:
    """Children before their parents. Raises NotFound if there is no such node."""
    from ebla.errors import NotFound

    found: list[str] = []
    for name in await session.children(path):
        child = _below(path, name)
        try:
            found += [*await _below_all(session, child), child]
        except NotFound:
            continue
    return found


async def sessions(cluster: Cluster) -> Shown:
    """List the sessions: owner, timeout, time of silence, number of ephemeral nodes."""
    found = await cluster.database.coordination.sessions()
    rows = (
        (each.session, brief(each.name, 40), age(each.timeout_ms / 1000), age(each.silent_s), each.nodes)
        for each in found
    )
    table = listing(("SESSION", "NAME", "TIMEOUT>", "SILENT>", "NODES>"), rows)
    return {"sessions": found}, table if found else "no sessions"


async def _session(cluster: Cluster) -> Session:
    return await cluster.database.session(SESSION_S, name="ebla coord")


def _document(node: Node) -> dict[str, Any]:
    """The node for `--json`; `data` is null if it is not text."""
    return {
        "path": node.path,
        "data": _text(node.data),
        "data_base64": base64.b64encode(node.data).decode(),
        "version": node.version,
        "created": node.created,
        "children": node.children,
        "session": node.owner,
    }


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _shown(data: bytes) -> str:
    text = _text(data)
    if not data:
        return "(empty)"
    return text if text is not None and text.isprintable() else f"{size(len(data))}: {data[:40]!r}"


def _below(path: str, name: str) -> str:
    return f"/{name}" if path == "/" else f"{path}/{name}"
