"""Defects of forced configurations and forgotten servers: rows of the table of chaos/planted.py."""

from __future__ import annotations

from ebla.chaos import disaster_defects
from ebla.chaos.defect import GIVEN_UP_AND_BACK, Defect

DISASTERS = (
    Defect(
        "mark-ignored",
        "a survivor takes what those send who were given up when a configuration was forced",
        "disasters",
        20,
        disaster_defects.take_what_the_given_up_send,
        seed=1,
        faults=GIVEN_UP_AND_BACK,
    ),
    Defect(
        "given-up-leads-on",
        "who is told that it was given up leads on",
        "disasters",
        20,
        disaster_defects.lead_on_when_given_up,
        faults=GIVEN_UP_AND_BACK,
    ),
    Defect(
        "forced-in-the-next-term",
        "a forced leader takes the term after the last that it knows, which the other side may lead, too",
        "disasters",
        40,
        disaster_defects.lead_the_next_term,
        seed=1,
        faults=GIVEN_UP_AND_BACK,
    ),
    Defect(
        "forced-without-mark",
        "a forced configuration is not newer than those before it",
        "disasters",
        40,
        disaster_defects.force_without_a_mark,
        seed=5,
    ),
    Defect(
        "forced-without-its-tail",
        "who is forced to lead lets go of what it does not know to be committed",
        "disasters",
        20,
        disaster_defects.force_on_what_is_committed,
    ),
    Defect(
        "living-forgotten",
        "a server is forgotten that lives",
        "disasters",
        20,
        disaster_defects.forget_whoever_is_named,
    ),
)
