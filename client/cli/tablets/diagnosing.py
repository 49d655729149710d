"""`ebla tablet diagnose`: why a tablet does not work, and the last resort for a PacificA tablet."""

from __future__ import annotations

import getpass
import socket
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

from ebla.actors.replication.configuration import PACIFICA, VOTER
from ebla.cli.frame import views
from ebla.cli.frame.connection import within
from ebla.cli.frame.losing import confirm_loss
from ebla.cli.frame.options import argument, option
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.render import listing, status
from ebla.cli.frame.ui import Shown, Ui
from ebla.cli.tablets.forcing import LoseData
from ebla.cli.tablets.members import document
from ebla.health.verdicts import member_word
from ebla.wording import age, brief, count, host_of, number, short

if TYPE_CHECKING:
    from ebla.operate.cluster import Cluster
    from ebla.operate.diagnosis import Diagnosis, Holder, Plan

HEAD_WIDTH = 18


def diagnose(
    ui: Ui,
    tablet: Annotated[
        str | None,
        argument(
            "TABLET", "The tablet's id, or its beginning. Without it: every tablet that is not fully healthy."
        ),
    ] = None,
    accept_loss: Annotated[
        bool,
        option(
            "--accept-loss",
            "Of a dead PacificA tablet: give up all of its members but one, with the writes that only they had.",
        ),
    ] = False,
    keep: Annotated[
        str | None,
        option(
            "--keep SERVER", "With --accept-loss: the replica that becomes the primary (default: the newest)."
        ),
    ] = None,
    yes: LoseData = None,
) -> Shown:
    """Explain why a tablet does not work: its servers, what happens by itself, what is safe to do, and what can be forced.

    With --accept-loss, acknowledged writes may be LOST. It is only for a tablet whose voters will never return; it is refused while
    one of them is alive. The catalog keeps a record of it for ever.
    """
    if tablet is None:
        if accept_loss:
            raise Usage(
                "--accept-loss is for one tablet", option="TABLET", hint="name it: `ebla tablet list`"
            )
        return within(ui, _diagnose_sick)
    if accept_loss:
        return within(ui, lambda cluster: _accept_loss(ui, cluster, tablet, keep, yes))
    if keep is not None or yes is not None:
        raise Usage(
            "--keep and --yes-i-lose-data go with --accept-loss",
            option="--keep",
            hint="add it, or leave them out",
        )
    return within(ui, lambda cluster: _diagnose(cluster, tablet))


async def _diagnose(cluster: Cluster, tablet: str) -> Shown:
    from ebla.operate import diagnosis

    found = await diagnosis.diagnose(cluster, tablet)
    return found, *_shown(found)


async def _diagnose_sick(cluster: Cluster) -> Shown:
    from ebla.operate import diagnosis

    found, sick, tablets = await diagnosis.diagnose_sick(cluster)
    parts: list[Any] = []
    for each in found:
        parts += [*_shown(each), ""]
    if not sick:
        parts = [f"{count(tablets, 'tablet')}, all fully healthy" if tablets else "no tablets"]
    elif sick > len(found):
        parts.append(f"and {count(sick - len(found), 'more tablet')} not fully healthy; name one to see it")
    return {"tablets": found, "not_fully_healthy": sick, "of": tablets}, *parts


async def _accept_loss(ui: Ui, cluster: Cluster, tablet: str, keep: str | None, yes: str | None) -> Shown:
    from ebla.operate import diagnosis

    found = await diagnosis.diagnose(cluster, tablet)
    plan = diagnosis.planned(found, keep)
    confirm_loss(ui, "tablet", plan.tablet, yes, _fates(found, plan))
    with ui.working("diagnose") as progress:
        reply = await diagnosis.force(cluster, plan, _operator(), progress)
    return (
        {**document(reply), "lost": plan.given_up},
        f"tablet {short(plan.tablet)} has been forced onto {host_of(plan.survivor.address)}, in ballot {reply.configuration.index}; "
        f"`ebla tablet show {short(plan.tablet)}` shows the progress",
    )


def _operator() -> str:
    """The operator, for the record in the catalog."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "an unknown user"
    return f"{user}@{socket.gethostname()}, on the command line"


# -- what is shown -------------------------------------------------------------------------------------------


def _shown(found: Diagnosis) -> list[Any]:
    title = status(found.status)
    title.append(f"  {found.table} tablet {short(found.tablet)}: {found.health_class}", style="bold default")
    return [
        title,
        *_lines("id", [found.tablet]),
        *_lines("in the catalog", [_configuration(found)]),
        _holders(found.holders, found.replication),
        *_lines("reported", [line for holder in found.holders for line in _troubles(holder)]),
        *_lines("why", found.why or ["every replica is there and in order"]),
        *_lines("by itself", found.by_itself),
        *_lines("safe", found.safe),
        *_lines("by force", [found.force] if found.force else []),
        *views.forced_records(found.forced),
    ]


def _part(part: str, replication: str) -> str:
    return member_word(part.replace("_", "-"), replication)


def _configuration(found: Diagnosis) -> str:
    known = found.configuration
    if known is None:
        return f"{found.replication}, no servers were chosen yet; it wants {count(found.replicas, 'replica')}"
    forced = f", forced {count(known.unsafe, 'time')}" if known.unsafe else ""
    members = ", ".join(
        host_of(peer.address) + ("" if peer.member == VOTER else f" ({_part(peer.kind, found.replication)})")
        for peer in known.peers
    )
    committed = f"; committed as far as known: {found.committed:,}"
    if found.replication != PACIFICA:
        return f"raft, configuration {known.index}{forced}: {members}; {found.replicas} replicas wanted{committed}"
    primary = next((host_of(peer.address) for peer in known.peers if peer.uuid == known.primary), "none")
    return (
        f"pacifica, ballot {known.index}{forced}, primary {primary}: {members}; {found.replicas} replicas wanted, min_members "
        f"{found.min_members}{committed}"
    )


def _holders(holders: tuple[Holder, ...], replication: str) -> Any:
    leases = replication == PACIFICA
    rows = []
    for each in holders:
        server = "up" if each.server == "up" else f"silent {age(each.heartbeat_age_s)}"
        lease = [
            f"{each.lease or '-'} {age(each.beacon_age_s) if each.beacon_age_s is not None else ''}".strip()
        ]
        rows.append(
            (
                f"  {host_of(each.address)}",
                _part(each.part, replication),
                server,
                *(lease if leases else []),
                _replica(each),
                number(each.ballot),
                number(each.last_index),
                number(each.commit_index),
                f"{len(each.quarantined)} in quarantine" if each.quarantined else "",
            )
        )
    era = "BALLOT>" if leases else "TERM>"
    lease_header = ("LEASE",) if leases else ()
    headers = ("  HOST", "PART", "SERVER", *lease_header, "REPLICA", era, "LAST>", "COMMIT>", "REMARK")
    return listing(headers, rows)


def _troubles(holder: Holder) -> list[str]:
    """The troubles of the server; the table of holders has no room for it."""
    found = [holder.trouble, None if holder.server == "up" else holder.server]
    return [f"{host_of(holder.address)}: {brief(trouble)}" for trouble in found if trouble]


def _replica(holder: Holder) -> str:
    """The role of a running replica, or its state; of a server that does not answer, what it reported last."""
    if holder.state is None:
        return "-"
    if holder.server != "up":
        return f"was {holder.state}"
    return holder.role if holder.role and holder.state == "running" else holder.state


def _lines(head: str, sentences: Any) -> list[str]:
    found: list[str] = []
    for sentence in sentences:
        indent = f"  {head + ':'}".ljust(HEAD_WIDTH) if not found else " " * HEAD_WIDTH
        found += wrap(
            sentence,
            views.LINE_MAX,
            initial_indent=indent,
            subsequent_indent=" " * HEAD_WIDTH,
            break_on_hyphens=False,
        )
    return found


def _fates(found: Diagnosis, plan: Plan) -> list[Any]:
    rows = [
        (
            f"  {host_of(each.address)}",
            _part(each.part, found.replication),
            _replica(each),
            "the primary" if each.uuid == plan.survivor.uuid else "given up",
            number(each.ballot),
            number(each.last_index),
            number(each.commit_index),
        )
        for each in found.holders
        if each.part not in ("tombstone", "quarantine")
    ]
    return [
        f"tablet {plan.tablet} of table {plan.table}:",
        listing(("  HOST", "PART", "REPLICA", "BECOMES", "BALLOT>", "LAST>", "COMMIT>"), rows),
        *wrap(f"{plan.loss}.", views.LINE_MAX, break_on_hyphens=False),
    ]
