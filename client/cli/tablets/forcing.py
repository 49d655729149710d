"""`ebla tablet unsafe-change-config`: the last resort for a tablet whose majority is lost for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from ebla.cli.frame.losing import confirm_loss
from ebla.cli.frame.options import TabletId, option
from ebla.cli.frame.render import listing
from ebla.cli.frame.ui import Shown, Ui
from ebla.cli.tablets.members import document
from ebla.wording import host_of, number, short

if TYPE_CHECKING:
    from ebla.health.verdicts import ReplicaHealth, TabletHealth
    from ebla.operate.cluster import Cluster
    from ebla.operate.forcing import Plan


LoseData = Annotated[
    str | None,
    option("--yes-i-lose-data TABLET-ID", "The tablet's whole id, instead of typing it at the prompt."),
]


async def unsafe_change_config(
    ui: Ui,
    cluster: Cluster,
    tablet: TabletId,
    keep: Annotated[list[str], option("--keep SERVER", "A member that survives; repeatable.")],
    yes: LoseData = None,
) -> Shown:
    """Force a tablet onto its surviving members. Writes that only the others had acknowledged are LOST.

    Only for a majority that will never return: bring its hosts back instead if there is any way. The tablet keeps a record
    of it for ever. Its missing replicas are created again from the survivor.
    """
    from ebla.operate import forcing

    survey, health = await cluster.tablet_health(tablet)
    plan = forcing.planned(survey, health, keep)
    confirm_loss(ui, "tablet", plan.tablet, yes, _shown(plan, health))
    with ui.working("unsafe-change-config") as progress:
        reply = await forcing.force(cluster, plan, progress)
    return (
        {**document(reply), "lost": plan.lost},
        f"tablet {short(plan.tablet)} has been forced onto {len(plan.keep)} of its members; `ebla tablet show "
        f"{short(plan.tablet)}` shows the progress",
    )


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
