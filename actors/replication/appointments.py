"""How one configuration of a PacificA tablet follows another: functions of the configuration in the catalog.

The master makes every configuration durable before anybody follows it. Each has a ballot (`index`) that is one above
the ballot before, and a primary.

    a change of the primary  a learner becomes a voter, a secondary becomes a learner, another voter becomes the primary
    the end of a server      another voter becomes the primary
    an operator              after the loss of every voter, a replica that is none becomes the only voter, and the primary

Every voter holds every committed entry (tablet/pacifica says why), so any voter may become the primary; only an operator
may choose another replica, and then entries may be lost. Only the primary itself can say that a learner holds everything,
and only a primary whose lease is over, or that has stepped down, may be replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from ebla.actors.replication.configuration import NON_VOTER, PRE_VOTER, VOTER, Configuration, Peer
from ebla.storage.errors import InvalidArgument


def appointed(configuration: Configuration, primary: str) -> Configuration:
    """The configuration of the next ballot, with this voter as the primary."""
    made = replace(configuration, primary=primary, index=configuration.index + 1)
    own = made.peer(primary)
    assert own is not None and own.member == VOTER, ("a primary is a voter", made)
    return made


def next_members(
    configuration: Configuration, ready: Collection[str], failing: Sequence[str]
) -> tuple[Peer, ...]:
    """The members, with the learners `ready` as voters and the voters `failing` as learners. As many voters stay as
    `min_members` demands; those that come first in `failing` lose their vote first."""
    voters = [peer.uuid for peer in configuration.voters()]
    assert all(uuid in voters for uuid in failing), ("voters fail", failing, voters)
    staying = [*voters, *ready]
    for uuid in failing:
        if len(staying) > configuration.min_members:
            staying.remove(uuid)
    return tuple(_as(peer, votes=peer.uuid in staying) for peer in configuration.peers)


def _as(peer: Peer, *, votes: bool) -> Peer:
    if votes == (peer.member == VOTER):
        return peer
    if votes:
        assert peer.kind == PRE_VOTER, ("only a learner becomes a voter", peer)
        return replace(peer, member=VOTER, promote=False)
    return replace(peer, member=NON_VOTER, promote=True, replace=False)


def require_members(configuration: Configuration, peers: Sequence[Peer], primary: str) -> None:
    """Refuse members that the primary may not ask for. The master would not grant them, and the primary would repeat the
    request for ever."""
    if len({peer.uuid for peer in peers}) < len(peers):
        raise InvalidArgument("a member is named twice; name each once")
    before = [peer.uuid for peer in configuration.voters()]
    after = [peer.uuid for peer in peers if peer.member == VOTER]
    if any(uuid not in before for uuid in after):
        raise InvalidArgument(
            "a new member is added as a pre-voter; it becomes a voter when it has caught up"
        )
    if primary not in after:
        raise InvalidArgument(f"the primary {primary} cannot remove itself; let it step down first")
    least = configuration.min_members
    if len(after) < min(least, len(before)):
        raise InvalidArgument(f"the tablet needs {least} voters; add a member before you remove one")


def grant(stored: Configuration, asked: Configuration, sender: str) -> Configuration | None:
    """The configuration that the primary `sender` asked for, to be made durable; None if the stored one is the answer: it is what
    was asked for, or the sender does not know it yet. Raises InvalidArgument for a request that no primary makes."""
    if sender != stored.primary or asked.index != stored.index + 1:
        return None
    voters = [peer.uuid for peer in asked.voters()]
    uuids = [peer.uuid for peer in asked.peers]
    for holds, rule in (
        (asked.primary in voters, "the primary is a voter"),
        (asked.primary in [peer.uuid for peer in stored.voters()], "only a voter becomes the primary"),
        (len(dict.fromkeys(uuids)) == len(uuids), "a member is named once"),
        (all(stored.peer(uuid) is not None for uuid in voters), "only a learner becomes a voter"),
        (len(voters) >= min(stored.min_members, len(stored.voters())), "min_members voters stay"),
        (
            (asked.unsafe, asked.min_members) == (stored.unsafe, stored.min_members),
            "the marks stay as they are",
        ),
        (stored.settled <= asked.settled <= stored.index, "a settled ballot is one that was led"),
    ):
        if not holds:
            raise InvalidArgument(f"{rule}; {sender} asks for {asked}, and the catalog has {stored}")
    return asked


def forced(stored: Configuration, survivor: Peer) -> Configuration:
    """The configuration by which an operator gives up every member but `survivor`, which leads alone, in the next ballot and
    forced epoch. `min_members` stays: the survivor serves once a learner has caught up."""
    alone = Peer(survivor.uuid, survivor.address)
    made = replace(stored, peers=(alone,), unsafe=stored.unsafe + 1, settled=0)
    return appointed(made, survivor.uuid)


def after_end(
    stored: Configuration,
    ended: str,
    *,
    silent: bool,
    gone: Callable[[str], bool],
    alive: Callable[[str], bool],
    rank: Callable[[str], tuple[int, ...]],
) -> Configuration | None:
    """The configuration after the end of the process of server `ended`; None if the stored one stays.

    If that was the primary, or the primary is `gone` (its end is durable, and it has not returned), the voter with the lowest
    `rank` of those that are `alive` (they have a lease) leads. A primary that is neither gone nor alive may serve still:
    a new active master has not heard of it yet. A server that is `silent`, or was the primary and died, loses its vote, if
    enough others have one; a server that has restarted keeps it, because it holds everything.
    """
    own, primary = stored.peer(ended), stored.primary
    assert primary is not None, ("a PacificA tablet has a primary", stored)
    if own is None or own.member != VOTER:
        return None
    if primary == ended or gone(primary):
        others = [peer.uuid for peer in stored.voters() if peer.uuid != ended and alive(peer.uuid)]
        if not others:
            return None
        primary = min(others, key=lambda uuid: (rank(uuid), uuid))
    members = next_members(stored, (), [ended]) if silent else stored.peers
    if (members, primary) == (stored.peers, stored.primary):
        return None
    return appointed(replace(stored, peers=members), primary)
