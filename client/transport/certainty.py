"""Whether a request that failed may have been carried out: one rule for everything that sends requests.

A request is sent again, the same bytes under the same id, until there is an answer. A try that got no answer may still be on its
way, and be carried out after a later try was refused: the reason for the refusal may have passed by then. So a refusal is
certain only if no try before it was left open. lanes.py, fast_path.py and write/bulk.py keep to this for writes, client.py for what
masters are asked. What router.py asks by itself (scans, flushes) changes no rows.
"""

from __future__ import annotations

from ebla.actors.errors import OutcomeUnknown, Unavailable
from ebla.storage.errors import EblaError
from ebla.transport.routes import same


class Tries:
    """What the tries of one request have left open so far."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open = False

    def failed(self, error: EblaError) -> None:
        """A try, or a part of the request, ended in this error."""
        self._open = self._open or error.possibly_applied

    def carried_out(self) -> None:
        """A part of the request was."""
        self._open = True

    def told(self, error: EblaError) -> EblaError:
        """The error that the request ends in, for its caller. Unavailable promises that nothing was carried out: where that
        is open, it becomes OutcomeUnknown."""
        if error.possibly_applied or not self._open:
            return error
        if isinstance(error, Unavailable):
            return OutcomeUnknown(
                f"the request may have been carried out, or may be yet; its last try: {type(error).__name__}: {error}"
            )
        told = same(error)
        told.possibly_applied = True
        told.add_note("the request, or a part of it, may have been carried out, or may be yet")
        return told
