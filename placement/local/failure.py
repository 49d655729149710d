"""A failed `ebla up --local`, recorded in the directory of its cluster: `<directory>/failed.json`.

Without this record, the next command for the local cluster would take any Ray cluster on the
machine for it, even one of another user. The next `up --local` that succeeds removes the record,
and so does `down`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ebla.placement.local.cluster import LocalCluster
from ebla.storage.directories.instance import write_durably
from ebla.storage.errors import InvalidArgument, os_trouble

FILE = "failed.json"
WORDS_MAX = 300
INTERRUPTED = "it was interrupted"
ELSEWHERE = "to use another Ray cluster, name it with --address or RAY_ADDRESS (`auto`: the one that runs on this machine)"


class Failure(msgspec.Struct, frozen=True):
    """A failed start. `nodes`: the requested number."""

    nodes: int
    why: str


@contextlib.contextmanager
def remembered(directory: Path, nodes: int) -> Iterator[None]:
    """Record a failure of the work within, which starts the local cluster and runs the first steps on it. A request that is
    refused as invalid has started nothing, and is not recorded."""
    try:
        yield
    except InvalidArgument:
        raise
    except BaseException as error:
        text = os_trouble(error) if isinstance(error, OSError) else str(error).strip()
        first = (text.splitlines() or [type(error).__name__])[0]
        why = first if isinstance(error, Exception) else INTERRUPTED
        found = LocalCluster.find(directory)
        if found is None or not found.running:  # later commands find a running one without the record
            _remember(directory, Failure(nodes, why[:WORDS_MAX]))
        raise
    forget(directory)


def forget(directory: Path) -> None:
    (directory / FILE).unlink(missing_ok=True)


def absence(directory: Path) -> str | None:
    """Why the requested local cluster does not run, and the remedy; None if it runs, none was
    requested, or it was ended by a command."""
    failure = _recall(directory)
    if failure is not None:
        return (
            f"the local Ray cluster of {failure.nodes} nodes did not come up ({failure.why.rstrip('.:')}): `ebla up --local "
            f"{failure.nodes}` tries again, `ebla down` forgets it; {ELSEWHERE}"
        )
    found = LocalCluster.find(directory)
    if found is None or found.running:
        return None
    nodes = max(found.state.size, len(found.state.nodes), 1)
    return (
        f"the local Ray cluster of {nodes} nodes has ended without `ebla down`: `ebla up --local {nodes}` brings it back, `ebla "
        f"down` forgets it, the data stays; {ELSEWHERE}"
    )


def _remember(directory: Path, failure: Failure) -> None:
    with contextlib.suppress(OSError):  # the first failure is the one to report
        directory.mkdir(parents=True, exist_ok=True)
        write_durably(directory / FILE, msgspec.json.encode(failure))


def _recall(directory: Path) -> Failure | None:
    try:
        return msgspec.json.decode((directory / FILE).read_bytes(), type=Failure)
    except (OSError, msgspec.MsgspecError):
        return None
