"""The rules of every replication protocol for a request that changes members (`ChangeMembersRequest`)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ebla.actors import errors
from ebla.actors.messages.repair import ADD, MODIFY, REMOVE, MemberChange
from ebla.actors.replication.configuration import VOTER, Configuration
from ebla.storage.errors import InvalidArgument

TIMEOUT_S_MAX = 30.0


def check(changes: Sequence[MemberChange]) -> None:
    uuids = [change.peer.uuid for change in changes]
    if not changes or len(dict.fromkeys(uuids)) != len(uuids):
        raise InvalidArgument(f"name each member that changes once, and one at least; got {uuids}")
    for change in changes:
        if change.kind not in (ADD, REMOVE, MODIFY):
            raise InvalidArgument(f"a change is {ADD!r}, {REMOVE!r} or {MODIFY!r}, not {change.kind!r}")


def in_force(configuration: Configuration, change: MemberChange) -> bool:
    """Whether the change is in force already. An added pre-voter may have been promoted since."""
    present, wanted = configuration.peer(change.peer.uuid), change.peer
    if change.kind == REMOVE:
        return present is None
    if present is None:
        return False
    if change.kind == MODIFY:
        return present == wanted
    return present.address == wanted.address and (
        (present.member, present.promote) == (wanted.member, wanted.promote)
        or (present.member == VOTER and wanted.promote)
    )


def changed(configuration: Configuration, changes: Sequence[MemberChange]) -> Configuration:
    """The configuration after the changes. Raises InvalidArgument for a change that does not fit
    the members."""
    peers = {peer.uuid: peer for peer in configuration.peers}
    for change in changes:
        wanted = change.peer
        if in_force(configuration, change):
            continue
        if change.kind == ADD:
            if wanted.uuid in peers:
                raise InvalidArgument(f"{peers[wanted.uuid]} is a member already; modify it instead")
            peers[wanted.uuid] = wanted
        elif change.kind == REMOVE:
            del peers[wanted.uuid]
        elif wanted.uuid in peers:
            peers[wanted.uuid] = wanted
        else:
            raise InvalidArgument(f"{wanted.uuid} is no member of {list(peers)}; add it instead")
    made = replace(configuration, peers=tuple(peers.values()))
    assert all(in_force(made, change) for change in changes), ("every change is made", made, changes)
    return made


def require_unmoved(tablet: str, found: Configuration, index: int | None, unsafe: int) -> None:
    """Raise ConfigurationMoved unless `found` is the configuration that the request is based on."""
    if index is not None and (unsafe, index) != found.order:
        raise errors.ConfigurationMoved(
            f"the committed configuration of tablet {tablet} is that of index {found.index}{_marked(found.unsafe)}, not of "
            f"{index}{_marked(unsafe)}; check again",
            tablet=tablet,
            found=found.index,
        )


def _marked(unsafe: int) -> str:
    return f" (forced, {unsafe} so far)" if unsafe else ""
