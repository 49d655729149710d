"""Failures of commands: one message with the problem and the remedy, and an exit status.

0    done; for `check` and `verify`: no problem was found
1    not done, or a problem was found
2    the command line is wrong, or an extra is not installed; nothing was begun. Of `verify`: not compared, as of `diff`
    130  interrupted with Ctrl-C; 143 with SIGTERM
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ebla.placement.extras import MissingPackage
from ebla.storage.errors import EblaError, InvalidArgument, did_you_mean

FAILED, USAGE, INTERRUPTED, TERMINATED = 1, 2, 130, 143

NEXT_STEPS = {
    "TimedOut": "`ebla check` shows what is missing",
    "NotDelivered": "is the deployment up? See `ebla status`",
    "OutcomeUnknown": "see `ebla check`, then run the command again: it is safe to repeat",
    "DirectoryLocked": "another deployment uses this directory: `ebla down` ends it, `--data-dir` names another",
    "DiskFull": "free some space, then run the command again",
    "NotLeader": "the leader has just changed; run the command again",
    "NotEnoughStores": "`ebla nodes` shows the ledger stores; `ebla log create` makes logs for fewer of them",
    "RecoveryFailed": "`ebla check` shows the ledger stores that do not answer; bring them back, then repeat. If one will never return: "
    "`ebla nodes forget HOST --accept-loss`",
    "LogFenced": "run the command again: it becomes the log's writer",
    "NotEmpty": "`--recursive` deletes the nodes below, too",
    "Throttled": "the cluster is at a stated limit; run the command again in a moment",
}


class Usage(InvalidArgument):
    """The command line is wrong. `option` names the part, `hint` the remedy."""

    fields: ClassVar[tuple[str, ...]] = ("column", "row", "option", "hint")
    option: str | None
    hint: str | None


class FileTrouble(EblaError):
    """The operating system refused an operation on a file. `hint` is the next step."""

    fields = ("hint",)
    hint: str | None


class Stopped(Exception):
    """Ctrl-C was pressed, where it is the way to end the command: nothing is reported."""


class NotCompared(Exception):
    """A comparison failed with this error before it had a result. The exit status tells that from a difference."""

    def __init__(self, error: EblaError) -> None:
        super().__init__(error)
        self.error = error


def column_hint(name: str, names: Sequence[str]) -> str:
    """The column that may have been meant, else all of them."""
    return did_you_mean(name, names) or f"; the columns are {', '.join(names)}"


def exit_status(error: EblaError) -> int:
    return USAGE if isinstance(error, InvalidArgument | MissingPackage) else FAILED


def next_step(error: EblaError) -> str | None:
    """The remedy, unless the message has it already."""
    given: str | None = getattr(error, "hint", None)
    if given is not None:
        return given
    step = NEXT_STEPS.get(type(error).__name__)
    return None if step is None or "`ebla" in error.message else step


def document(error: EblaError, status: int) -> dict[str, Any]:
    """The error as `--json` prints it."""
    fields = {name: value for name, value in error.values().items() if value is not None and name != "hint"}
    kind, step = type(error).__name__, next_step(error)
    return error_document(kind, error.message, status, step, error.possibly_applied, fields)


def error_document(
    kind: str,
    message: str,
    status: int,
    hint: str | None = None,
    possibly_applied: bool = False,
    fields: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "error": {
            "kind": kind,
            "message": message,
            "hint": hint,
            "possibly_applied": possibly_applied,
            "exit_status": status,
            "fields": fields or {},
        }
    }
