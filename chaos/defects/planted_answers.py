"""Defects of the answers that tablets keep, and of clocks: rows of the table of chaos/defects/planted.py."""

from __future__ import annotations

from ebla.chaos.defects import alters, answers
from ebla.chaos.defects.defect import Defect

ANSWERS = (
    Defect(
        "log-time-from-the-wall",
        "log time is the leader's wall clock, so that a step of it makes answers expire",
        "clocks",
        60,
        answers.take_log_time_from_the_wall_clock,
        seed=8,
    ),
    Defect(
        "log-time-of-each-term",
        "each leader counts log time from the beginning of its term, so that it goes back",
        "clocks",
        20,
        answers.count_log_time_anew_in_each_term,
        seed=0,
    ),
    Defect(
        "expired-by-the-own-setting",
        "each server forgets answers by its own setting, and not by the log",
        "clocks",
        20,
        answers.expire_by_the_own_setting,
        seed=1,
    ),
    Defect(
        "reserve-by-the-wall",
        "a wall clock deletes a dropped table for good",
        "takeovers",
        40,
        alters.reserves_end_by_the_wall_clock,
        seed=8,
    ),
    Defect(
        "refusals-forgotten",
        "a refusal is not stored as an answer, so that a late copy of the request is applied",
        "refusals",
        40,
        answers.forget_refusals,
        seed=1,
    ),
    Defect(
        "refused-by-the-master",
        "the master's word that a table is dropped ends a write for certain, and a late copy of it is applied after a recall",
        "refusals",
        100,
        answers.end_writes_at_the_masters_word,
        seed=92,
    ),
)
