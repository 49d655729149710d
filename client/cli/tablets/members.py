"""`ebla tablet add-replica | remove-replica | move-replica`: which servers have a replica of a tablet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from ebla.actors.replication.configuration import PACIFICA, RAFT
from ebla.cli.frame.connection import within
from ebla.cli.frame.options import BackgroundTimeout, TabletId, argument, option
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.ui import Shown, Ui
from ebla.health.verdicts import member_word
from ebla.wording import brief, host_of, short

if TYPE_CHECKING:
    from ebla.actors.messages import MembersReply
    from ebla.actors.replication.configuration import Peer
    from ebla.operate.members import Change

ROLES = {"voter": "voter", "pre-voter": "pre_voter", "non-voter": "non_voter"}

Server = Annotated[str, argument("SERVER", "Host, address or uuid (or its beginning).")]
Wait = Annotated[bool, option("-w --wait", "Return when the tablet has all of its replicas.")]


def add_replica(
    ui: Ui,
    tablet: TabletId,
    server: Server,
    role: Annotated[
        str, option("--role ROLE", "voter, or non-voter: an additional replica that never counts.")
    ] = "voter",
    wait: Wait = False,
    timeout: BackgroundTimeout = 600.0,
) -> Shown:
    """Add a replica of a tablet on a server. Until it has caught up it is a pre-voter and does not count.

    Refused if the tablet has all of its replicas: use `move-replica` then.
    """
    from ebla.operate import members

    if role not in ROLES:
        raise Usage(f"there is no role {role!r}", option="--role", hint="voter, pre-voter or non-voter")
    return _carry_out(ui, members.adding(server, ROLES[role]), tablet, wait, timeout)


def remove_replica(
    ui: Ui,
    tablet: TabletId,
    server: Server,
    at_once: Annotated[
        bool,
        option(
            "--at-once",
            "Remove it before another server has taken its place. A replacement is still created, so another host must "
            "be free; to avoid that, drain this host first.",
        ),
    ] = False,
    wait: Wait = False,
    timeout: BackgroundTimeout = 600.0,
) -> Shown:
    """Remove a tablet's replica from a server when another server has taken its place. Its data goes into quarantine.

    A leader hands over first. Refused if no other server could take it, or too few healthy ones would be left.
    """
    from ebla.operate import members

    return _carry_out(ui, members.removing(server, at_once), tablet, wait, timeout)


def move_replica(
    ui: Ui,
    tablet: TabletId,
    source: Annotated[str, argument("FROM", "Host, address or uuid.")],
    target: Annotated[str, argument("TO", "Host, address or uuid.")],
    wait: Wait = False,
    timeout: BackgroundTimeout = 600.0,
) -> Shown:
    """Move a tablet's replica: TO is copied and catches up, then FROM is removed. Reads and writes continue.

    If TO fails meanwhile, another server takes its place, and `--wait` ends with an error. The command may be repeated at
    any time.
    """
    from ebla.operate import members

    return _carry_out(ui, members.moving(source, target), tablet, wait, timeout)


def _carry_out(ui: Ui, change: Change, tablet: str, wait: bool, timeout_s: float) -> Shown:
    from ebla.operate.members import carry_out

    with ui.working(change.name) as progress:
        reply, needless = within(
            ui, lambda cluster: carry_out(cluster, change, tablet, timeout_s, wait, progress)
        )
    nothing = [f"nothing to do: {change.leaves} has no replica of it"] if needless else []
    return {**document(reply), "waited": wait, "needless": needless}, *_members(reply), *nothing


def role_of(peer: Peer) -> str:
    """voter, pre-voter or non-voter."""
    return "voter" if peer.member == "voter" else "pre-voter" if peer.promote else "non-voter"


def document(reply: MembersReply) -> dict[str, Any]:
    members = [
        {"uuid": peer.uuid, "address": peer.address, "role": role_of(peer), "replace": peer.replace}
        for peer in reply.configuration.peers
    ]
    return {
        "tablet": reply.tablet,
        "configuration_index": reply.configuration.index,
        "unsafe": reply.configuration.unsafe,
        "members": members,
    }


def _members(reply: MembersReply) -> list[str]:
    peers = reply.configuration.peers
    members = []
    for peer in peers:
        leaving = ", goes when its replacement has caught up" if peer.replace else ""
        role = member_word(role_of(peer), RAFT if reply.configuration.primary is None else PACIFICA)
        members.append(f"{host_of(peer.address)} ({role}{leaving})")
    lines = [f"tablet {short(reply.tablet)}: {', '.join(members)}"]
    if any(peer.member != "voter" or peer.replace for peer in peers):
        see = f"`ebla tablet show {short(reply.tablet)}` the tablet"
        lines.append(brief(f"`ebla tablet copies --watch` shows the copy, {see}"))
    return lines
