"""Changes of a tablet's members, requested of its primary: one configuration from another, compare-and-set on the one in
force. The primary asks the master, and answers once the master's configuration is in force. A change that is in force already is
answered at once, so a request may be repeated while its outcome is unknown.
"""

from __future__ import annotations

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.member_changes import (
    TIMEOUT_S_MAX,
    changed,
    check,
    in_force,
    require_unmoved,
)
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.pacifica.core import PacificaCore
from ebla.actors.world import World
from ebla.storage.errors import EblaError


async def change(
    world: World, rounds: Rounds, replica: Replica, request: m.ChangeMembersRequest, poll_s: float
) -> m.MembersReply:
    """Change the members. Raises NotLeader, OutcomeUnknown (not known to be in force), ConfigurationMoved, AlreadyInProgress,
    InvalidArgument.

    The configuration in force counts, committed or not: the master has made it durable. So a group that cannot commit, because
    a member is gone, can still replace that member.
    """
    replica.require_running()
    core, changes = replica.core, request.changes
    assert isinstance(core, PacificaCore), ("a PacificA tablet has PacificA's core", replica.tablet)
    check(changes)
    if not replica.leads:
        raise replica.not_leader()
    known = core.configuration
    if all(in_force(known, each) for each in changes):
        return m.MembersReply(replica.tablet, known)
    require_unmoved(replica.tablet, known, request.configuration_index, request.configuration_unsafe)
    wanted = changed(known, changes)
    now, timeout_s = world.clock.monotonic(), min(request.timeout_s, TIMEOUT_S_MAX)
    asked = rounds.step(replica, core.request_members, now, wanted.peers)
    while replica.state == RUNNING and core.asked is asked and world.clock.monotonic() < now + timeout_s:
        await world.clock.sleep(poll_s)
    if replica.leads and core.configuration.index >= asked.index:
        known = core.configuration
        if all(in_force(known, each) for each in changes):
            return m.MembersReply(replica.tablet, known)
    raise _unknown(world, replica, asked)


def _unknown(world: World, replica: Replica, asked: Configuration) -> EblaError:
    return errors.OutcomeUnknown(
        f"the members of tablet {replica.tablet} in ballot {asked.index}, which {world.address} has asked the master for, are not in "
        "force here: the master does not answer, or has decided otherwise; check again",
        address=world.address,
    )
