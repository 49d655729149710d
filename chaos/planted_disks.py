"""Defects of full disks and of scans block by block: rows of the table of chaos/planted.py."""

from __future__ import annotations

from ebla.chaos import disk_defects
from ebla.chaos.defect import Defect

DISKS = (
    Defect(
        "ends-on-a-full-disk",
        "a tablet server ends when its disk is full",
        "chains",
        40,
        disk_defects.end_when_the_disk_is_full,
        seed=0,
    ),
    Defect(
        "next-block-instead",
        "who asks again for a block of a scan, for its answer was lost, is given the next one",
        "scans",
        60,
        disk_defects.answer_every_question_with_the_next_block,
        seed=0,
    ),
)
