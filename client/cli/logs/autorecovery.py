"""`ebla autorecovery status | enable | disable | trigger | delay`: the repair of ledgers after the loss of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from ebla.cli.frame.amounts import when
from ebla.cli.frame.options import argument
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.render import facts, listing
from ebla.cli.frame.ui import Shown
from ebla.wording import count, host_of, short, size

if TYPE_CHECKING:
    from ebla.actors.ledger.messages import Task
    from ebla.actors.ledger.shared.repairs import Repairs, Tally
    from ebla.actors.ledger.shared.survey import MarkedLedger, RepairSurvey
    from ebla.operate.cluster import Cluster

REASONS_MAX = 20
NAMED_MAX = 8  # ledgers of one reason

DelaySeconds = Annotated[
    float | None, argument("SECONDS", "How long a lost store may be away before it is replaced.")
]


async def status(cluster: Cluster) -> Shown:
    """Show what is under-replicated, who repairs it and how fast, and what cannot be repaired, with the reason.

    A ledger is under_replicated; moving, if only a host that is being decommissioned is replaced; or unrecoverable, if entries have no
    readable copy.
    """
    from ebla.actors.ledger.shared.survey import survey

    found = await survey(cluster.ledgers.world, cluster.ledgers.session)
    parts: list[Any] = [facts(_facts(found))]
    if found.lost:
        rows = (
            (
                short(each.uuid),
                host_of(each.address),
                when(each.since_us),
                "being decommissioned" if each.leaving else "",
            )
            for each in found.lost
        )
        parts += ["", "stores that do not run:", listing(("STORE", "HOST", "NOTICED", "REMARK"), rows)]
    if found.marked:
        hosts = {each.uuid: host_of(each.address) for each in found.known}
        marked = (
            (
                each.ledger,
                each.state,
                ", ".join(hosts.get(store, short(store)) for store in each.stores),
                when(each.since_us),
                host_of(each.worker) if each.worker else "-",
                _speed(each.task),
                _again(each),
            )
            for each in found.marked
        )
        headers = ("LEDGER>", "STATE", "STORE", "SINCE", "REPAIRED BY", "PROGRESS", "TRIED AGAIN")
        parts += ["", "ledgers to repair:", listing(headers, marked)]
        if found.marks > len(found.marked):
            parts.append(f"and {count(found.marks - len(found.marked), 'more ledger')}")
        parts += _reasons(found.marked)
    return found, *parts


def _speed(task: Task | None) -> str:
    """`40% of 12,000 entries, 18 MiB/s`."""
    if task is None:
        return "-"
    share = f"{100 * task.looked // task.entries}% of " if task.entries else ""
    rate = size(int(task.copied_bytes / max(task.seconds, 0.001)))
    return f"{share}{count(task.entries, 'entry', 'entries')}, {rate}/s"


def _again(found: MarkedLedger) -> str:
    if found.worker is not None or found.retry_us is None:
        return "-"
    return f"{when(found.retry_us)}, after {count(found.tries, 'try', 'tries')}"


def _reasons(marked: Sequence[MarkedLedger]) -> list[str]:
    """Each reason once, with its ledgers."""
    by_reason: dict[str, list[int]] = {}
    for each in marked:
        if each.reason is not None:
            by_reason.setdefault(each.reason, []).append(each.ledger)
    lines = ["", "not whole yet, because:"] if by_reason else []
    for reason, ledgers in list(by_reason.items())[:REASONS_MAX]:
        named = ", ".join(map(str, ledgers[:NAMED_MAX])) + (", ..." if len(ledgers) > NAMED_MAX else "")
        lines.append(f"  {named}: {reason}")
    return lines


def _facts(found: RepairSurvey) -> list[tuple[str, Any]]:
    delay = "the auditor's own" if found.delay_s is None else f"{found.delay_s:g} s"
    stores = f"{len(found.running)} of {count(len(found.known), 'store')} run"
    return [
        ("repairs", "enabled" if found.enabled else "disabled; `ebla autorecovery enable` starts them again"),
        ("auditor", found.auditor or "none"),
        ("stores", stores),
        *([("being decommissioned", ", ".join(map(host_of, found.leaving)))] if found.leaving else []),
        ("to repair", _counted(found)),
        ("delay of a lost store", delay),
        ("last audit", when(found.audit_us)),
        ("last check of all ledgers", when(found.check_us)),
        *([("copies as of that check", _copies(found.copies))] if found.copies is not None else []),
    ]


def _copies(found: Tally) -> str:
    """`complete in 11 of 12 closed ledgers; fewer than the ack quorum in 1`."""
    complete = found.ledgers - found.below_write
    text = f"complete in {complete:,} of {count(found.ledgers, 'closed ledger')}"
    if found.below_ack:
        text += f"; fewer than the ack quorum in {found.below_ack:,}"
    if found.without:
        text += f"; none of an entry in {found.without:,}"
    if found.unknown:
        text += f"; stores of {found.unknown:,} did not answer"
    return text


def _counted(found: RepairSurvey) -> str:
    states = Counter(each.state for each in found.marked)
    named = ", ".join(f"{states[each]} {each.replace('_', '-')}" for each in sorted(states))
    return count(found.marks, "ledger") + (f": {named}" if named else "")


def _repairs(cluster: Cluster) -> Repairs:
    from ebla.actors.ledger.shared.repairs import Repairs

    return Repairs(cluster.ledgers.session)


async def enable(cluster: Cluster) -> Shown:
    """Start repairs again."""
    await _repairs(cluster).enable()
    return {"enabled": True}, "repairs of ledgers are enabled"


async def disable(cluster: Cluster) -> Shown:
    """Stop repairs, for instance while hosts are restarted. What is lost meanwhile is noted."""
    await _repairs(cluster).disable()
    return {"enabled": False}, "repairs of ledgers are disabled; `ebla autorecovery enable` starts them again"


async def trigger(cluster: Cluster) -> Shown:
    """Start an audit now: ledgers of stores that do not run are repaired without a delay."""
    await _repairs(cluster).trigger()
    return {"triggered": True}, "an audit begins; `ebla autorecovery status` shows what it finds"


async def delay(cluster: Cluster, seconds: DelaySeconds = None) -> Shown:
    """Show or set how long a single lost store may be away before its ledgers are repaired."""
    repairs = _repairs(cluster)
    if seconds is not None:
        if seconds < 0:
            raise Usage(f"a delay is 0 s or more, not {seconds:g}", option="SECONDS")
        await repairs.set_delay(seconds)
    now = await repairs.delay_s()
    text = "the auditor's own delay holds" if now is None else f"a lost store may be away for {now:g} s"
    return {"delay_s": now}, text
