"""A replica whose data could not be loaded. It reports why it failed, and does nothing else.

It is kept and never treated as absent: its data may be needed, and its votes must not be forgotten.
"""

from __future__ import annotations

from ebla.actors import errors
from ebla.actors.messages import ReplicaReport
from ebla.actors.replication.configuration import Configuration


class Broken:
    state = "failed"
    leads = False
    size_bytes = 0

    def __init__(
        self, tablet: str, error: str, configuration: Configuration | None, *, forgetful: bool
    ) -> None:
        """`forgetful`: the record of its votes is lost."""
        self.tablet = tablet
        self.error = error
        self.forgetful = forgetful
        self.configuration = configuration or Configuration(())

    def facts(self) -> tuple[object, ...]:
        return (self.state, self.error)

    def refusal(self) -> errors.ReplicaFailed:
        return errors.ReplicaFailed.of(self.tablet, self.error)

    def report(self) -> ReplicaReport:
        return ReplicaReport(
            tablet=self.tablet,
            state=self.state,
            configuration=self.configuration,
            error=self.error,
        )
