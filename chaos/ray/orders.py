"""What a run and its processes of clients (chaos/ray/clients.py) say to each other."""

from __future__ import annotations

import msgspec

ORDER_BYTES_MAX = 1 << 20


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """`group` numbers the process, from 1 on; the first one takes the pulse. `epoch_s` is zero on the run's clock.
    `answer_s_max`: for what is under way when clients stop, and again for all last reads. `sample`: addresses to which
    calls are tried, where they are to be lost or late."""

    scenario: str
    seed: int
    group: int
    clients: int
    deployment: str
    address: str
    cluster: str
    results: str
    epoch_s: float
    answer_s_max: float
    sample: tuple[str, ...] = ()


class Judged(msgspec.Struct, frozen=True):
    """A verdict of chaos/checkers on one history."""

    workload: str
    history: str
    valid: bool | None
    problem: str
    events: tuple[int, ...]
    judged: int


class Told(msgspec.Struct, frozen=True):
    """`problems`: what went wrong, in words. `calls`: how long some calls took, None for one that was lost."""

    what: str
    problems: tuple[str, ...] = ()
    verdicts: tuple[Judged, ...] = ()
    calls: tuple[float | None, ...] = ()
