"""Defects of several requests under way, and of requests that are sent again: rows of the table of chaos/defects/planted.py."""

from __future__ import annotations

from ebla.chaos.defects import crowds
from ebla.chaos.defects.defect import Defect

CROWDS = (
    Defect(
        "open-request-forgotten",
        "the lowest of a client's open requests counts as answered: its retry is refused",
        "crowds",
        60,
        crowds.forget_the_lowest_open_request,
        seed=11,
    ),
    Defect(
        "first-answer-for-all",
        "all callers whose rows travelled together get the answer of the first one",
        "crowds",
        60,
        crowds.tell_all_callers_what_the_first_is_told,
        seed=1,
    ),
    Defect(
        "open-change-forgotten",
        "the answer to the lowest of a session's open changes is dropped: its retry is carried out again",
        "crowds",
        60,
        crowds.drop_the_answer_to_the_lowest_open_change,
        seed=10,
    ),
    Defect(
        "frozen-beside-a-flush",
        "a flush drops the rows that a scan froze during the flush",
        "crowds",
        60,
        crowds.flush_lets_go_of_what_was_frozen_meanwhile,
        seed=6,
    ),
    Defect(
        "row-behind-a-block",
        "a scan misses a row that is the only one after a block",
        "crowds",
        60,
        crowds.pass_over_a_single_row_behind_a_block,
        seed=1,
    ),
    Defect(
        "oldest-frozen-first",
        "a read finds the oldest of several frozen values of a key",
        "scans",
        40,
        crowds.read_the_oldest_of_what_was_frozen,
        seed=0,
    ),
)
