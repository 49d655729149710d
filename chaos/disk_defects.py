"""What planted defects swap where disks are full, and where a scan's blocks are asked for twice; chaos/planted.py names them."""

from __future__ import annotations

from ebla.actors.messages import ScanBlock, ScanContinue
from ebla.actors.tablet import rounds
from ebla.actors.tablet.scans import Scans
from ebla.chaos.defects import Swap


def end_when_the_disk_is_full() -> list[Swap]:
    """Nobody catches it."""
    return [(rounds, "DiskFull", ZeroDivisionError)]


def answer_every_question_with_the_next_block() -> list[Swap]:
    honest = Scans.more

    async def more(self: Scans, request: ScanContinue) -> ScanBlock:
        scanner = self._open.get(request.scanner)
        if scanner is None or scanner.busy:
            return await honest(self, request)
        return await self._next(scanner)

    return [(Scans, "more", more)]
