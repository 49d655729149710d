"""Defects of forced configurations and forgotten servers: rows of the table of chaos/defects/planted.py."""

from __future__ import annotations

from ebla.chaos.defects import disasters
from ebla.chaos.defects.defect import GIVEN_UP_AND_BACK, Defect

DISASTERS = (
    Defect(
        "mark-ignored",
        "a survivor accepts messages of replicas that a forced configuration gave up",
        "disasters",
        20,
        disasters.take_what_the_given_up_send,
        seed=1,
        faults=GIVEN_UP_AND_BACK,
    ),
    Defect(
        "given-up-leads-on",
        "a replica leads on after it learned that it was given up",
        "disasters",
        20,
        disasters.lead_on_when_given_up,
        faults=GIVEN_UP_AND_BACK,
    ),
    Defect(
        "forced-in-the-next-term",
        "a forced leader takes the term after the last that it knows, in which the other side may also lead",
        "disasters",
        40,
        disasters.lead_the_next_term,
        seed=1,
        faults=GIVEN_UP_AND_BACK,
    ),
    Defect(
        "forced-without-mark",
        "a forced configuration is not newer than those before it",
        "disasters",
        40,
        disasters.force_without_a_mark,
        seed=12,
    ),
    Defect(
        "forced-without-its-tail",
        "a forced leader drops the entries that it does not know to be committed",
        "disasters",
        20,
        disasters.force_on_what_is_committed,
    ),
    Defect(
        "living-forgotten",
        "a server is forgotten that lives",
        "disasters",
        20,
        disasters.forget_whoever_is_named,
    ),
)
