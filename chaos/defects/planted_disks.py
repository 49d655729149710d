"""Defects of disks that are full, hang, are slow or lost, and of scans block by block: rows of the table of chaos/defects/planted.py."""

from __future__ import annotations

from ebla.chaos.defects import disks
from ebla.chaos.defects.defect import Defect

DISKS = (
    Defect(
        "ends-on-a-full-disk",
        "a tablet server ends when its disk is full",
        "chains",
        40,
        disks.end_when_the_disk_is_full,
        seed=0,
    ),
    Defect(
        "start-needs-space",
        "a tablet server that starts on a full disk ends if a deletion or a copy is left to be finished there",
        "full-disks",
        40,
        disks.end_a_start_on_a_full_disk,
        seed=15,
    ),
    Defect(
        "one-flush-for-all-disks",
        "a flush to a disk that hangs keeps the replicas on all others from being flushed",
        "hung-data",
        40,
        disks.flush_one_at_a_time,
        seed=1,
    ),
    Defect(
        "next-block-instead",
        "a repeated request for a block of a scan gets the next block",
        "scans",
        60,
        disks.answer_every_question_with_the_next_block,
        seed=0,
    ),
    Defect(
        "hung-leader-leads-on",
        "a leader whose disk hangs leads on, and answers neither writes nor reads",
        "hangs",
        20,
        disks.lead_on_while_the_disk_hangs,
        seed=0,
    ),
    Defect(
        "checked-before-the-wait",
        "a read checks the schema before it waits for committed entries, of which one may be an alteration",
        "alters",
        100,
        disks.check_the_schema_before_the_wait,
        seed=11,
    ),
    Defect(
        "lost-disk-silences",
        "a server with a lost data disk can report neither its status nor its replicas",
        "disasters",
        60,
        disks.measure_rows_on_a_lost_disk,
        seed=1,
    ),
)
