"""`ebla tablet add-replica | remove-replica | move-replica`: which servers hold a tablet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebla.cli.frame.cluster import Cluster, within
from ebla.cli.frame.commands import command
from ebla.cli.frame.polling import persist, until
from ebla.cli.frame.problems import Refused, Usage
from ebla.cli.frame.render import brief, host_of, short
from ebla.cli.frame.ui import Progress, Ui
from ebla.cli.tablets.tablets import TabletId

if TYPE_CHECKING:
    import msgspec

    from ebla.actors.messages import MembersReply
    from ebla.actors.replication.configuration import (
        Configuration,
        Peer,
    )
    from ebla.health.verdicts import TabletHealth

ROLES = {"voter": "voter", "pre-voter": "pre_voter", "non-voter": "non_voter"}
ASK_S = 15.0

Server = Annotated[
    str,
    typer.Argument(metavar="SERVER", help="Host, address or uuid (or its beginning).", show_default=False),
]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Return when the tablet has all of its replicas.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", min=1, help="Longest wait; the work continues in the background."
    ),
]


def add_replica(
    ui: Ui,
    tablet: TabletId,
    server: Server,
    role: Annotated[
        str, typer.Option("--role", help="voter, or non-voter: an additional replica that never counts.")
    ] = "voter",
    wait: Wait = False,
    timeout: Timeout = 600.0,
) -> None:
    """Add a replica of a tablet on a server. Until it has caught up it is a pre-voter and does not count.

    Refused if the tablet has all of its replicas: use `move-replica` then.
    """
    from ebla.actors.master.messages import AddReplicaRequest

    if role not in ROLES:
        raise Usage(f"there is no role {role!r}", option="--role", hint="voter, pre-voter or non-voter")
    votes = role != "non-voter"

    def ask(full: str) -> msgspec.Struct:
        return AddReplicaRequest(full, server, ROLES[role])

    def reached(configuration: Configuration, _: str) -> bool:
        peer = find(configuration, server)
        return peer is not None and (peer.member == "voter" or not votes)

    _carry_out(ui, "add-replica", tablet, ask, reached if wait else None, timeout)


def remove_replica(
    ui: Ui,
    tablet: TabletId,
    server: Server,
    at_once: Annotated[
        bool,
        typer.Option(
            "--at-once",
            help="Remove it before another server has taken its place. A replacement is still created, so another host must "
            "be free; to avoid that, drain this host first.",
        ),
    ] = False,
    wait: Wait = False,
    timeout: Timeout = 600.0,
) -> None:
    """Remove a tablet's replica from a server when another server has taken its place. Its data goes into quarantine.

    A leader hands over first. Refused if no other server could take it, or too few healthy ones would be left.
    """
    from ebla.actors.master.messages import RemoveReplicaRequest

    def ask(full: str) -> msgspec.Struct:
        return RemoveReplicaRequest(full, server, at_once)

    def reached(configuration: Configuration, leaves: str) -> bool:
        peer = find(configuration, leaves)
        if peer is not None and peer.member == "voter" and not peer.replace and not at_once:
            raise Refused(
                f"the removal was given up: no server could take the place of {server}",
                hint="see `ebla nodes`; on a drained host `--at-once` needs no other server",
            )
        return peer is None

    _carry_out(ui, "remove-replica", tablet, ask, reached if wait else None, timeout, leaves=server)


def move_replica(
    ui: Ui,
    tablet: TabletId,
    source: Annotated[str, typer.Argument(metavar="FROM", help="Host, address or uuid.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="TO", help="Host, address or uuid.", show_default=False)],
    wait: Wait = False,
    timeout: Timeout = 600.0,
) -> None:
    """Move a tablet's replica: TO is copied and catches up, then FROM is removed. Reads and writes continue.

    If TO fails meanwhile, another server takes its place, and `--wait` ends with an error. The command may be repeated at
    any time.
    """
    from ebla.actors.master.messages import MoveReplicaRequest

    def ask(full: str) -> msgspec.Struct:
        return MoveReplicaRequest(full, source, target)

    def reached(configuration: Configuration, leaves: str) -> bool:
        there, here = find(configuration, target), find(configuration, leaves)
        if there is None and here is None:
            raise Refused(
                f"the replica left {source}, but {target} could not take it: the tablet is at {_at(configuration)} now",
                hint=f"see `ebla nodes` for {target}; move one of these there if it matters which",
            )
        if there is None and here is not None and not here.replace:
            raise Refused(
                f"the move was given up: {target} could not take the replica, and it stays at {source}",
                hint="see `ebla nodes`, then choose another server",
            )
        return here is None

    _carry_out(ui, "move-replica", tablet, ask, reached if wait else None, timeout, leaves=source)


def _carry_out(
    ui: Ui, method: str, tablet: str, ask: Any, reached: Any, timeout_s: float, *, leaves: str | None = None
) -> None:
    """`leaves`: whose replica is to go. `reached` is asked with its uuid: soon another server may be at the address."""

    async def work(cluster: Cluster) -> tuple[MembersReply, bool]:
        from ebla.actors.messages import MembersReply

        _, location = await cluster.tablet(tablet)
        places = [(place.uuid, place.address) for place in location.replicas]
        held = None if leaves is None else meant(leaves, places)
        request, rpc = ask(location.tablet), method.replace("-", "_")
        reply = await persist(cluster, rpc, request, MembersReply, min(ASK_S, timeout_s), progress)
        needless = leaves is not None and held is None
        if reached is None or needless:
            return reply, needless

        def settled(configuration: Configuration) -> bool:
            return bool(reached(configuration, held or ""))

        return await _settled(cluster, reply, settled, timeout_s, progress, method), False

    with ui.working(method) as progress:
        reply, needless = within(ui, work)
    told = [f"nothing to do: {leaves} has no replica of it"] if needless else []
    ui.show({**document(reply), "waited": reached is not None, "needless": needless}, *_told(reply), *told)


async def _settled(
    cluster: Cluster, first: MembersReply, reached: Any, timeout_s: float, progress: Progress, what: str
) -> MembersReply:
    """When what was asked for is reached, and the tablet is healthy with it."""
    from ebla.actors.messages import MembersReply
    from ebla.health.tablets import judge

    seen = first

    async def look() -> str | None:
        nonlocal seen
        info, _ = await cluster.tablet(first.tablet)
        survey = await cluster.survey([info.name])
        health = next(each for each in judge(survey).tablets if each.tablet == first.tablet)
        leading = led(survey.states.values(), health)
        if leading is None or leading.order < first.configuration.order:
            return "it has no leader now"
        seen = MembersReply(first.tablet, leading)
        if reached(leading) and health.status == "HEALTHY":
            return None
        return health.reasons[0] if health.reasons else "its configuration is changing"

    await until(look, timeout_s, progress, what)
    return seen


def led(states: Any, health: TabletHealth) -> Configuration | None:
    """The committed configuration, as the tablet's leader has it."""
    from ebla.health.verdicts import Unanswered

    for state in states:
        if isinstance(state, Unanswered) or state.instance.uuid != health.leader:
            continue
        for replica in state.replicas:
            if replica.tablet == health.tablet:
                found: Configuration = replica.configuration
                return found
    return None


# -- what is said --------------------------------------------------------------------------------------------


def find(configuration: Configuration, word: str) -> Peer | None:
    """The member that is meant by a host, an address or a uuid (or how it begins); of several the one that came last."""
    return next(
        (peer for peer in reversed(configuration.peers) if names(word, peer.uuid, peer.address)), None
    )


def meant(word: str, places: Iterable[tuple[str, str]]) -> str | None:
    """The uuid of the one that is meant. Raises Refused if it may be several: one lost its directory, and another came."""
    found = [(uuid, address) for uuid, address in places if names(word, uuid, address)]
    if len(found) > 1:
        told = " or ".join(f"{host_of(address)} ({uuid})" for uuid, address in found)
        raise Refused(f"{word!r} may mean {told}", hint="name one by its uuid")
    return found[0][0] if found else None


def names(word: str, uuid: str, address: str) -> bool:
    return word in (uuid, address, host_of(address)) or (len(word) >= 4 and uuid.startswith(word))


def _at(configuration: Configuration) -> str:
    return ", ".join(host_of(peer.address) for peer in configuration.peers)


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


def _told(reply: MembersReply) -> list[str]:
    told = []
    for peer in reply.configuration.peers:
        role = role_of(peer)
        if peer.replace:
            role += ", goes when its replacement has caught up"
        told.append(f"{host_of(peer.address)} ({role})")
    lines = [f"tablet {short(reply.tablet)}: {', '.join(told)}"]
    if any(peer.member != "voter" or peer.replace for peer in reply.configuration.peers):
        lines.append(
            brief(
                f"`ebla tablet copies --watch` shows the copy, `ebla tablet show {short(reply.tablet)}` the tablet"
            )
        )
    return lines


def register(app: typer.Typer) -> None:
    command(app, "add-replica")(add_replica)
    command(app, "remove-replica")(remove_replica)
    command(app, "move-replica")(move_replica)
