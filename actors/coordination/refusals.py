"""Requests that were refused in this active term: a late copy of such a request is refused as well.

In memory only, because a late copy was sent to this process. The namespace keeps the answers of carried out requests.
"""

from __future__ import annotations

from ebla.actors.coordination.messages import ChangeRequest
from ebla.actors.errors import StaleRequest
from ebla.storage.errors import EblaError

REFUSALS_MAX = 1000  # of a session


class _Of:
    def __init__(self) -> None:
        self.unanswered = 0
        self.errors: dict[int, EblaError] = {}


class Refusals:
    def __init__(self) -> None:
        self._of: dict[str, _Of] = {}

    def require_new(self, request: ChangeRequest) -> None:
        """Raise the error with which the request was refused before, or StaleRequest if its client gave it up."""
        of = self._of.setdefault(request.session, _Of())
        if request.unanswered > of.unanswered:
            of.unanswered = request.unanswered
            for number in [number for number in of.errors if number < request.unanswered]:
                del of.errors[number]
        if request.number < of.unanswered:
            raise StaleRequest(
                f"request {request.number} of session {request.session} was given up by its client"
            )
        earlier = of.errors.get(request.number)
        if earlier is not None:
            raise type(earlier)(earlier.message, **earlier.values())

    def note(self, request: ChangeRequest, error: EblaError) -> None:
        errors = self._of[request.session].errors
        if not error.retriable and len(errors) < REFUSALS_MAX:
            errors[request.number] = error

    def forget(self, session: str) -> None:
        self._of.pop(session, None)
