"""The table of all defects, and the block in which one of them is planted.

A simulator that finds nothing may be unable to find anything. Runs inside of `planted(name)` must therefore end in a
violation, within `seeds_max` seeds of the defect's scenario. docs/testing.md lists the seeds that were needed;
tests/chaos/test_planted.py checks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ebla.chaos.defects import (
    alters,
    answers,
    coordination,
    disasters,
    disks,
    growing,
    ledgers,
    masters,
    members,
    pacifica,
    quiescence,
    raft,
    repairs,
    storage,
)
from ebla.chaos.defects.defect import Defect
from ebla.storage.errors import InvalidArgument

MODULES = (
    raft,
    quiescence,
    pacifica,
    storage,
    answers,
    masters,
    growing,
    coordination,
    ledgers,
    repairs,
    members,
    alters,
    disasters,
    disks,
)
DEFECTS = {
    each.name: each for module in MODULES for each in vars(module).values() if isinstance(each, Defect)
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Give the production classes of this process the defect until the block ends. "" plants nothing."""
    with ExitStack() as stack:
        for where, attribute, instead in defect(name).swaps() if name else ():
            if attribute in vars(where):
                stack.callback(setattr, where, attribute, vars(where)[attribute])
            else:
                stack.callback(delattr, where, attribute)  # the class inherits it
            setattr(where, attribute, instead)
        yield


def defect(name: str) -> Defect:
    if name not in DEFECTS:
        raise InvalidArgument(f"there is no planted defect {name!r}; there are {', '.join(DEFECTS)}")
    return DEFECTS[name]
