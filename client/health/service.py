"""Judges what a tablet still does for clients. Await-free.

The five health classes have one meaning in every replication protocol:

    class                    serves                 because
    fully healthy            reads and writes       every replica is there and in order
    writable but unhealthy   reads and writes       a replica is missing, or not in order
    readable but unwritable  reads                  the primary leads, and fewer than `min_members` voters keep up
    unreadable               nothing                a voter runs, but none leads with what reading needs
    dead                     nothing                no voter runs

Reading needs a majority of a Raft tablet. Of a PacificA tablet it needs the lease of the primary's server, and that
the entries are committed which the primary began with. A replica whose server does not answer does not count as running: what
is unknown is not healthy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ebla.actors.replication.configuration import PACIFICA
from ebla.health import verdicts as v
from ebla.wording import count, host_of, number

if TYPE_CHECKING:
    from ebla.actors.messages import ReplicaReport, ServerState, TableInfo, TabletLocation


def lost_service(
    info: TableInfo,
    location: TabletLocation,
    replicas: tuple[v.ReplicaHealth, ...],
    running: Mapping[str, ReplicaReport],
    leader: str | None,
    survey: v.Survey,
) -> tuple[str, str] | None:
    """The status of a tablet that does not both read and write, and the reason; None if it does."""
    voters = [place.uuid for place in location.replicas if place.role != "learner"]
    voting = [uuid for uuid in voters if uuid in running]
    starting = any(each.status == v.BOOTSTRAPPING for each in replicas if each.uuid in voters)
    run = f"{len(voting)} of {count(len(voters), 'voter')} run"
    if not voting and not starting:
        places = [host_of(place.address) for place in location.replicas if place.uuid in voters]
        return v.DEAD, f"{run}: {', '.join(places)}"
    pacifica = info.replication == PACIFICA
    if not pacifica and len(voting) <= len(voters) // 2:
        return v.UNREADABLE, f"{run}, no majority"
    if leader is None and pacifica:
        suspended = [each for each in replicas if each.uuid in voting and each.suspended]
        if suspended and len(suspended) == len(voting):
            return v.UNREADABLE, f"no voter may lead, {run}: {suspension_of(suspended)}"
        return v.UNREADABLE, f"no primary leads it, {run}"
    if leader is None:
        return v.UNREADABLE, "none of its replicas leads"
    if not pacifica:
        return None
    address = next(place.address for place in location.replicas if place.uuid == leader)
    state = survey.states[address]
    assert not isinstance(state, v.Unanswered), "its server has reported the leader"
    missing = _unreadable(running[leader], state)
    if missing is not None:
        return v.UNREADABLE, missing
    keeping_up = [uuid for uuid in voting if running[leader].health.get(uuid) not in v.OUT_OF_ORDER]
    least = info.min_members or 1
    if len(keeping_up) < least:
        kept = f"{len(keeping_up)} of {count(len(voters), 'voter')} run and keep up"
        return v.UNWRITABLE, f"{kept}, it takes writes with {least}"
    return None


def _unreadable(primary: ReplicaReport, state: ServerState) -> str | None:
    """Why the primary of a PacificA tablet answers no reads."""
    if state.lease_left_s <= 0:
        return f"the server of its primary has no lease: {no_lease(state)}"
    view = primary.view
    if view is not None and view.commit_index < view.reads_from:
        return f"its primary has committed {number(view.commit_index)} of the {number(view.reads_from)} entries that it began with"
    return None


def suspension_of(suspended: Sequence[v.ReplicaHealth]) -> str:
    """That servers lead nothing because of an operator, and the remedy."""
    found: list[str] = []
    for unlisted, remedy in (
        (False, "suspended; `ebla nodes suspend HOST --off` ends that"),
        (True, "not on the allow list; `ebla nodes allow-only` changes it"),
    ):
        hosts = [host_of(each.address) for each in suspended if each.unlisted == unlisted]
        found += [f"{', '.join(hosts)} {'is' if len(hosts) == 1 else 'are'} {remedy}"] if hosts else []
    return "; ".join(found)


def needs_lease(state: ServerState) -> bool:
    """Whether a PacificA replica runs on the server."""
    return any(
        each.view is not None and each.view.leased and each.state == "running" for each in state.replicas
    )


def no_lease(state: ServerState) -> str:
    return state.lease_refused or "no master has acknowledged a beacon lately"
