"""Whether a failed request may have been carried out: one rule for all code that sends requests.

A request is sent again, the same bytes with the same id, until there is an answer. An attempt without an answer may arrive
late, and be carried out after a later attempt was refused: the reason for the refusal may have passed by then. So a refusal is
certain only if every attempt before it got an answer. master_client.py follows this rule for requests to masters; the
client's lanes.py, fast_path.py and write/bulk.py for writes. The other requests (scans, flushes) change no rows.
"""

from __future__ import annotations

from ebla.actors.asking.retries import same
from ebla.actors.errors import OutcomeUnknown, Unavailable
from ebla.storage.errors import EblaError, add_note


class Tries:
    """Whether an attempt of one request may have been carried out, so far."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open = False

    def failed(self, error: EblaError) -> None:
        """An attempt, or a part of the request, ended in this error."""
        self._open = self._open or error.possibly_applied

    def carried_out(self) -> None:
        """A part of the request was carried out."""
        self._open = True

    def outcome(self, error: EblaError) -> EblaError:
        """The error for the caller when the request ends in `error`. Unavailable promises that nothing was carried out: if
        that is not certain, the caller gets OutcomeUnknown."""
        if error.possibly_applied or not self._open:
            return error
        if isinstance(error, Unavailable):
            return OutcomeUnknown(
                f"the request may have been carried out, or may be yet; its last try: {type(error).__name__}: {error}"
            )
        uncertain = same(error)
        uncertain.possibly_applied = True
        add_note(uncertain, "the request, or a part of it, may have been carried out, or may be yet")
        return uncertain
