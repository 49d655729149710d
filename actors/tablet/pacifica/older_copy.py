"""What shows that a replica's directory is an older copy, whose log lacks entries that its voter has acknowledged.

    its newest configuration is of a ballot before one that all voters held (`settled`)
    a primary, or a member that this replica leads, has committed entries that are not here

The second counts in its forced epoch only: a later one gave up what its survivor did not have. A replica that has led keeps it on its
disk: with what it wrote then, its log may look newer than the others after the next start.
"""

from __future__ import annotations

from ebla.actors.messages.pacifica import NOTHING
from ebla.actors.replication.configuration import Configuration


class OlderCopy:
    def __init__(self, lacks: tuple[int, int] = NOTHING) -> None:
        # Each a forced epoch, and the last index of the committed entries of which this log lacks one.
        self._ends_before, self.lacks = NOTHING, lacks

    def ends_before(self, epoch: int, index: int) -> None:
        """Note that this log is too short for the committed entries up to `index`."""
        self._ends_before = max(self._ends_before, (epoch, index))

    def differs(self, epoch: int, index: int) -> None:
        """Note that this log has not all of the committed entries up to `index`, however long it is: it has led, with its own."""
        self.lacks = max(self.lacks, (epoch, index))

    def agrees(self, until: int, committed: int) -> None:
        """Note that this log is that of its primary up to `until`. `committed`: up to which that primary has committed it, and this disk
        has it. Another primary on an older copy commits nothing; and what is kept on the disk is forgotten after the entries are there."""
        if until >= self._ends_before[1]:
            self._ends_before = NOTHING
        if min(until, committed) >= self.lacks[1]:
            self.lacks = NOTHING

    def why(self, held: int, configuration: Configuration) -> str:
        """Why a log whose newest configuration is of ballot `held` leads in no ballot that follows `configuration`; "" if it may."""
        for epoch, index in (self._ends_before, self.lacks):
            if index and epoch == configuration.unsafe:
                return f"lacks committed entries up to {index}"
        if held < configuration.settled:
            return f"ends in ballot {held}, and all voters had ballot {configuration.settled}"
        return ""
