"""Messages between a run and its processes of clients (chaos/ray/clients.py)."""

from __future__ import annotations

import msgspec

ORDER_BYTES_MAX = 1 << 20


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """`group`: the number of the process, from 1 on; the first one runs the pulse. `epoch_s`: zero of the run's clock.
    `pauses`: how many times longer than by default the clients pause between two operations. `answer_s_max`: the time for
    operations under way when clients stop, and for all last reads. `sample`: addresses to which calls are measured, if calls are
    to be lost or late. `excused`: errors that the plan's faults explain."""

    scenario: str
    seed: int
    group: int
    clients: int
    pauses: float
    deployment: str
    address: str
    cluster: str
    results: str
    epoch_s: float
    answer_s_max: float
    excused: tuple[str, ...]
    sample: tuple[str, ...] = ()


class Judged(msgspec.Struct, frozen=True):
    """A verdict of chaos/checkers on one history."""

    workload: str
    history: str
    valid: bool | None
    problem: str
    events: tuple[int, ...]
    judged: int


class Reply(msgspec.Struct, frozen=True):
    """`problems`: failures, in words. `calls`: how long some calls took, None for a lost one."""

    what: str
    problems: tuple[str, ...] = ()
    verdicts: tuple[Judged, ...] = ()
    calls: tuple[float | None, ...] = ()
