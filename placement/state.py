"""The state of a deployment on disk, outside any Ray cluster: `<data_dir>/deployment.json`.

A Ray cluster loses all of its state with its head. This file records the settings of the
deployment, the slots with a directory of a master or journal node (a role that moved would start
empty), the journal of the catalog, and the slots of each placement group. It is written durably on
the host that runs the command and on every slot, before the steps that it describes.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ebla.actors.errors import Unavailable
from ebla.placement.config import DeploymentConfig
from ebla.storage.directories.instance import decode_of_format, make_directory, write_durably
from ebla.storage.errors import Damaged, InvalidArgument

FILE, LOCK = "deployment.json", "deployment.lock"
FORMAT = 1


class JournalMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The journal that holds the catalog: its id, and the slots of its nodes, journal/0 first.
    `in_master`: the journal has, or had at first, one node, in the process of master/0.
    `formatted`: every node has had the journal, so it is never made again. `joining`: the slots of
    the nodes with which the journal grows."""

    id: str
    slots: tuple[str, ...]
    in_master: bool = False
    formatted: bool = False
    joining: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        return self.slots + self.joining

    @property
    def may_grow(self) -> bool:
        return self.in_master and len(self.wanted) == 1


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a deployment. A version that adds a field or a setting raises FORMAT: an older one
    would drop it at the next save. `revision` grows with each change. `masters` are slots, master/0
    first. `groups` maps the placement groups of the last Ray cluster to their slots, in the order
    of their bundles; `groups_made` numbers them, and no number is used again."""

    format: int = FORMAT
    uuid: str
    revision: int
    config: DeploymentConfig
    masters: tuple[str, ...] = ()
    journal: JournalMemory | None = None
    groups: dict[str, tuple[str, ...]] = {}
    groups_made: int = 0

    def revised(self, **changes: object) -> Deployment:
        """A new revision with the changes; `self` if they change nothing."""
        changed = msgspec.structs.replace(self, **changes)
        return self if changed == self else msgspec.structs.replace(changed, revision=self.revision + 1)


def load(data_dir: str) -> Deployment | None:
    path = Path(data_dir) / FILE
    try:
        return decode(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None


def decode(data: bytes, path: str) -> Deployment:
    remedy = (
        "if another version of ebla wrote it, use that one; else restore it from another host, or move it aside, and `ebla up` makes "
        "a new deployment over the same data"
    )
    try:
        return decode_of_format(data, Deployment, FORMAT, path)
    except msgspec.MsgspecError as error:
        raise Damaged(f"{path} is unreadable ({error}); {remedy}", path=path) from error


def encode(deployment: Deployment) -> bytes:
    return msgspec.json.format(msgspec.json.encode(deployment))


def save(data_dir: str, data: bytes) -> None:
    """Save the state, durable when it returns. Raises if the directory has the state of another
    deployment, or of another `ebla up` at the same time."""
    deployment = decode(data, "the new state")
    make_directory(Path(data_dir))
    with open(Path(data_dir) / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several slots may share one directory
        present = load(data_dir)
        if present == deployment:
            return
        if present is not None and present.uuid != deployment.uuid:
            raise InvalidArgument(_several(data_dir, (present, deployment)))
        if present is not None and present.revision >= deployment.revision:
            raise Unavailable(
                f"revision {deployment.revision} of {data_dir}/{FILE} is not saved: another `ebla up` has saved revision "
                f"{present.revision}; run `ebla up` again"
            )
        write_durably(Path(data_dir) / FILE, data)


def newest(found: Iterable[Deployment | None], name: str) -> Deployment | None:
    """The newest of the copies of several hosts."""
    copies = [deployment for deployment in found if deployment is not None]
    strangers = sorted({d.config.name for d in copies if d.config.name != name})
    if strangers:
        raise InvalidArgument(
            f"data_dir holds the deployment {', '.join(strangers)}, not {name}; give each deployment a data_dir of "
            "its own, or use its name"
        )
    if len({deployment.uuid for deployment in copies}) > 1:
        raise InvalidArgument(_several(copies[0].config.data_dir, copies))
    return max(copies, key=lambda deployment: deployment.revision, default=None)


def _several(data_dir: str, found: Iterable[Deployment]) -> str:
    masters = {deployment.uuid: ", ".join(deployment.masters) for deployment in found}
    named = " and ".join(f"{uuid[:8]} with masters on {slots}" for uuid, slots in sorted(masters.items()))
    return (
        f"{data_dir} holds several deployments of one name: {named}; move the directory of the wrong one aside on the "
        "hosts that have it"
    )
