"""What shows that a replica's directory is an older copy, whose log lacks entries that its voter has acknowledged.

    its newest configuration is of a ballot before one that all voters held (`settled`)
    a primary, or a member that this replica leads, has committed entries that are not here

The second counts in its forced epoch only: a later one gave up what its survivor did not have. It is forgotten with the process;
whoever has the entries shows them again.
"""

from __future__ import annotations

from ebla.actors.replication.configuration import Configuration


class OlderCopy:
    def __init__(self) -> None:
        self._lacks = (
            0,
            0,
        )  # a forced epoch, and the last index of the committed entries of which this log lacks one

    def lacks(self, epoch: int, index: int) -> None:
        """Note that this log has not all of the committed entries up to `index`. It may be longer: with entries of its own."""
        self._lacks = max(self._lacks, (epoch, index))

    def holds(self, index: int) -> None:
        """Note that this log has everything that its primary has committed, up to `index`."""
        if index >= self._lacks[1]:
            self._lacks = 0, 0

    def why(self, held: int, configuration: Configuration) -> str:
        """Why a log whose newest configuration is of ballot `held` leads in no ballot that follows `configuration`; "" if it may."""
        epoch, index = self._lacks
        if index and epoch == configuration.unsafe:
            return f"lacks committed entries up to {index}"
        if held < configuration.settled:
            return f"ends in ballot {held}, and all voters had ballot {configuration.settled}"
        return ""
