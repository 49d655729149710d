"""`ebla tablet unsafe-change-config`: the last resort for a tablet whose majority is lost for good."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ebla.cli.frame.cluster import Cluster, within
from ebla.cli.frame.commands import command
from ebla.cli.frame.problems import Refused
from ebla.cli.frame.render import host_of, listing, number, short
from ebla.cli.frame.ui import Progress, Ui
from ebla.cli.tablets.members import document, meant
from ebla.cli.tablets.tablets import TabletId
from ebla.storage.errors import EblaError, InvalidArgument

if TYPE_CHECKING:
    from ebla.actors.messages import MembersReply, ReplicaReport, UnsafeChangeRequest
    from ebla.actors.replication.configuration import Configuration
    from ebla.health.verdicts import ReplicaHealth, Survey, TabletHealth

FORCE_S = 20.0
CALL_S = 25.0  # a survivor asks the others, and waits until it is committed
AGAIN_S = 1.0


class Plan(msgspec.Struct, frozen=True):
    """The first of `survivors` (uuid and address) makes itself the leader of `keep`, or else the next. `configuration`: the
    one that it has committed."""

    tablet: str
    table: str
    survivors: tuple[tuple[str, str], ...]
    keep: tuple[str, ...]
    lost: tuple[str, ...]
    last_index: int
    commit_index: int
    configuration: Configuration


def unsafe_change_config(
    ui: Ui,
    tablet: TabletId,
    keep: Annotated[
        list[str],
        typer.Option(
            "--keep", metavar="SERVER", help="A member that survives; repeatable.", show_default=False
        ),
    ],
    yes: Annotated[
        str | None,
        typer.Option(
            "--yes-i-lose-data",
            metavar="TABLET-ID",
            help="The tablet's whole id, instead of typing it at the prompt.",
        ),
    ] = None,
) -> None:
    """Force a tablet onto its surviving members. Writes that only the others had acknowledged are LOST.

    Only for a majority that will never return: bring its hosts back instead if there is any way. The tablet keeps a record
    of it for ever. Its missing replicas are created again from the survivor.
    """

    async def work(cluster: Cluster) -> tuple[Plan, MembersReply]:
        from ebla.health.tablets import judge

        info, location = await cluster.tablet(tablet)
        survey = await cluster.survey([info.name])
        health = next(each for each in judge(survey).tablets if each.tablet == location.tablet)
        plan = planned(survey, health, keep)
        if not ui.json:
            for part in _shown(plan, health):
                ui.err.print(part, highlight=False, markup=False)
        _confirm(ui, plan.tablet, yes)
        with ui.working("unsafe-change-config") as progress:
            return plan, await _forced(cluster, plan, progress)

    plan, reply = within(ui, work)
    ui.show(
        {**document(reply), "lost": plan.lost},
        f"tablet {short(plan.tablet)} has been forced onto {len(plan.keep)} of its members; `ebla tablet show "
        f"{short(plan.tablet)}` shows the progress",
    )


async def _forced(cluster: Cluster, plan: Plan, progress: Progress) -> MembersReply:
    """By the first of the survivors that may lead: one that has less than another is refused. A leader that was heard a moment
    ago is waited for."""
    import asyncio

    from ebla.actors.messages import MembersReply

    clock = asyncio.get_running_loop().time
    deadline = clock() + FORCE_S
    left = list(plan.survivors)
    while True:
        uuid, address = left[0]
        request = request_of(plan, uuid, "requested on the command line")
        try:
            return await cluster.call(address, "unsafe_change", request, MembersReply, CALL_S)
        except InvalidArgument as error:
            if len(left) == 1:
                raise
            progress.step(error.message)
            del left[0]
        except EblaError as error:
            if not error.retriable or clock() >= deadline:
                raise
            progress.step(error.message)
            await asyncio.sleep(AGAIN_S)


def request_of(plan: Plan, uuid: str, reason: str) -> UnsafeChangeRequest:
    """What this one of its survivors is asked."""
    from ebla.actors.messages import UnsafeChangeRequest

    known = plan.configuration
    return UnsafeChangeRequest(uuid, plan.tablet, plan.keep, known.index, reason, known.unsafe)


def planned(survey: Survey, health: TabletHealth, keep: list[str]) -> Plan:
    """Who would lead, of those that are kept. Raises Refused where it is not needed, or cannot be."""
    reports = _reports(survey, health.tablet)
    _require_need(survey, health, reports)
    kept: dict[str, ReplicaReport] = {}
    for word in keep:
        uuid = meant(word, [(replica.uuid, replica.address) for replica in health.replicas])
        if uuid is None:
            hosts = ", ".join(host_of(replica.address) for replica in health.replicas)
            raise Refused(
                f"tablet {short(health.tablet)} has no replica at {word!r}", hint=f"it has: {hosts}"
            )
        report = reports.get(uuid)
        if report is None or report.state != "running":
            why = next(r.error for r in health.replicas if r.uuid == uuid) or "it does not answer"
            raise Refused(f"the replica at {word} cannot be kept: {why}", hint="keep the ones that run")
        kept[uuid] = report
    able = {
        uuid: report
        for uuid, report in kept.items()
        if (peer := report.configuration.peer(uuid)) is not None and peer.member == "voter"
    }
    if not able:
        raise Refused("none of the kept members is a voter, and only a voter can lead", hint="keep a voter")
    order = sorted(able, key=lambda uuid: (able[uuid].last_index, able[uuid].commit_index), reverse=True)
    addresses = {replica.uuid: replica.address for replica in health.replicas}
    report = able[order[0]]
    strange = [host_of(addresses[uuid]) for uuid in kept if report.configuration.peer(uuid) is None]
    if strange:
        raise Refused(
            f"{host_of(addresses[order[0]])} is to lead, but its configuration lacks the replica at "
            f"{', '.join(strange)}: the change that added it has not arrived there",
            hint="keep the others only; missing replicas are created again",
        )
    members = [peer.uuid for peer in report.configuration.peers]
    return Plan(
        tablet=health.tablet,
        table=health.table,
        survivors=tuple((uuid, addresses[uuid]) for uuid in order),
        keep=tuple(kept),
        lost=tuple(uuid for uuid in members if uuid not in kept),
        last_index=report.last_index,
        commit_index=report.commit_index,
        configuration=report.configuration,
    )


def _require_need(survey: Survey, health: TabletHealth, reports: dict[str, ReplicaReport]) -> None:
    """Who votes stands in the newest configuration that a survivor has committed (without a leader nobody else tells, and what the
    master heard last may be older), and in one that a survivor holds on top of it, which may never be: without a majority
    of either nobody who must have it is elected."""
    run = {uuid: report for uuid, report in reports.items() if report.state == "running"}
    newest = max((report.configuration for report in run.values()), key=lambda each: each.order, default=None)
    if newest is None:
        return
    for configuration in (newest, *_pending(survey, health.tablet, run, newest)):
        voters = configuration.voters()
        alive = sum(peer.uuid in run for peer in voters)
        if alive < configuration.majority:
            return
    raise Refused(
        f"{alive} of {len(voters)} voters of tablet {short(health.tablet)} run, a majority: no configuration needs to be forced",
        hint=f"`ebla tablet remove-replica {short(health.tablet)} SERVER` removes a replica",
    )


def _pending(
    survey: Survey, tablet: str, run: Container[str], newest: Configuration
) -> Iterator[Configuration]:
    from ebla.health.verdicts import Unanswered

    for state in survey.states.values():
        if not isinstance(state, Unanswered) and state.instance.uuid in run:
            pending = state.pending.get(tablet)
            if pending is not None and pending.order > newest.order:
                yield pending


def _reports(survey: Survey, tablet: str) -> dict[str, ReplicaReport]:
    from ebla.health.verdicts import Unanswered

    return {
        state.instance.uuid: replica
        for state in survey.states.values()
        if not isinstance(state, Unanswered)
        for replica in state.replicas
        if replica.tablet == tablet
    }


def _shown(plan: Plan, health: TabletHealth) -> list[Any]:
    rows = [
        (
            f"  {host_of(replica.address)}",
            replica.status,
            _fate(plan, replica),
            number(replica.last_index),
            number(replica.commit_index),
        )
        for replica in health.replicas
    ]
    return [
        f"tablet {plan.tablet} of table {plan.table}:",
        listing(("  HOST", "STATUS", "BECOMES", "LAST>", "COMMITTED>"), rows),
        f"LOST: every write that was acknowledged and is not in the log of the new leader, which ends at {plan.last_index:,} "
        f"(committed as far as it knows: {plan.commit_index:,}), and every later answer.",
    ]


def _fate(plan: Plan, replica: ReplicaHealth) -> str:
    if replica.uuid == plan.survivors[0][0]:
        return "the leader"
    return "a follower" if replica.uuid in plan.keep else "given up"


def _confirm(ui: Ui, tablet: str, yes: str | None) -> None:
    if yes is not None:
        if yes != tablet:
            raise Refused(
                f"--yes-i-lose-data names {yes!r}, and this is tablet {tablet}; nothing was changed",
                hint=None,
            )
        return
    if ui.json or not ui.interactive:
        raise Refused(
            "acknowledged writes may be lost, and there is no terminal for a confirmation",
            hint=f"add --yes-i-lose-data {tablet}",
        )
    ui.err.print("Type the tablet's whole id to continue: ", end="", highlight=False, markup=False)
    if sys.stdin.readline().strip() != tablet:
        raise Refused("this is not the tablet's id; nothing was changed")


def register(app: typer.Typer) -> None:
    command(app, "unsafe-change-config")(unsafe_change_config)
