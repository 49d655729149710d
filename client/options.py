"""What the client may touch, its limits, and the small values that its calls return.

The sizes follow from the cost of a call: flat up to about 100 KiB, then again worth it from about 1 MB on. So a call
stays under CALL_SMALL_BYTES, or is made of at least CALL_LARGE_MIN_BYTES where there is that much to send.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ebla.actors.world import Clock, Network, Random, Spawn
from ebla.storage.errors import InvalidArgument
from ebla.storage.python_values import shown

DEADLINE_S = 60.0  # for one row, or one batch of rows of a large call
WAIT_S = 60.0  # for the tablets of a new table
MASTER = "master/0"
INT_MAX = (1 << 63) - 1  # what every number on the way fits in

# A try is short, so that a server that fell silent costs little; it is sent again with the same request id.
ATTEMPT_S = 1.5
# One that was silent just now is only probed, and given twice the time with each silence more: it may be gone, and
# somebody else lead by now; or it may be slow, and must get its time in the end.
ATTEMPT_PROBE_S = 0.5
ATTEMPT_PROBE_DOUBLINGS_MAX = 3
ATTEMPT_BYTES_PER_S = 500_000
ATTEMPT_GRACE_S = 0.25  # the server gives up a little before we do, so that its reason reaches us
MASTER_ATTEMPT_S = 5.0
ASK_ATTEMPT_S = 10.0  # scans and flushes: a block of rows that few match, or a full memtable, takes its time
SUSPECT_S = 1.0  # how long a silent server is passed over

BACKOFF_FIRST_S = 0.02
BACKOFF_MAX_S = 0.2
THROTTLE_MAX_S = 5.0
HOPS_MAX = 3  # hints followed without a pause
SWEEP_S = 0.2  # how often deadlines are looked at: operations have no timers of their own

UNIT_BYTES = 80_000  # rows of one tablet that travel, are logged and are answered as one
CALL_SMALL_BYTES = 88_000
CALL_LARGE_MIN_BYTES = 1_050_000
CALL_LARGE_BYTES = 1_250_000
# Small calls to a server go one at a time, each with everything that queued during the last: on the way, a call costs far
# more than the rows in it. Only when one takes longer than PATIENCE_S do others go beside it.
SMALL_CALLS_MAX = 4
PATIENCE_S = 0.05
LARGE_CALLS_MAX = 4
UNANSWERED_BYTES_MAX = 24_000_000  # of one bulk call
SLICE_ROWS_MAX = 16_384
SLICE_BYTES = 4_000_000
KEYS_MAX = 2_000  # of one tablet in one get_many unit

SCAN_TABLETS_MAX = 4  # read at the same time
SCAN_BLOCKS_AHEAD = 4
SCAN_TRIES_MAX = 3  # for one block, at the server that holds the snapshot


@dataclass(frozen=True)
class ClientWorld:
    """A World without a disk: all that a client needs, so that it runs on Ray and in simulation alike."""

    clock: Clock
    network: Network
    random: Random
    spawn: Spawn


class Written(NamedTuple):
    """`rows` were applied; `rejected` are the positions of the others (present, or absent)."""

    rows: int
    rejected: tuple[int, ...] = ()


class WriteId(NamedTuple):
    """An id of the caller's own for a call that may be repeated later, even by another process.

    The rows at position p of the call belong to a request numbered `sequence` + p or lower, so the next call of the
    same `client` (16 bytes) continues at `sequence` + len(rows). A repetition must bring the same rows in the same
    order; it then changes nothing and gets the first answer.
    """

    client: bytes
    sequence: int


def check_deadline(deadline_s: Any, name: str = "deadline_s") -> float:
    if deadline_s is None:
        return DEADLINE_S
    if type(deadline_s) is float and deadline_s > 0:
        return deadline_s
    known = isinstance(deadline_s, numbers.Real) and deadline_s is not True
    if not known:
        raise InvalidArgument(f"{name} is a number of seconds, such as 5.0, not {shown(deadline_s)}")
    if not deadline_s > 0:
        raise InvalidArgument(f"{name} must be positive, not {shown(deadline_s)}")
    try:
        return float(deadline_s)
    except OverflowError:
        return float("inf")


def check_write_id(write_id: tuple[bytes, int] | None) -> WriteId | None:
    if write_id is None:
        return None
    if not isinstance(write_id, (tuple, list)) or len(write_id) != 2:
        raise InvalidArgument(
            f"a write_id is a pair of 16 bytes and a number, such as WriteId(uuid.uuid4().bytes, 0), not {shown(write_id)}"
        )
    client, sequence = write_id
    if not isinstance(client, bytes) or len(client) != 16:
        raise InvalidArgument("the client of a write_id is 16 bytes; digest a longer name to 16 bytes")
    return WriteId(client, check_int("the sequence of a write_id", sequence, 0))


def check_int(name: str, value: Any, least: int, most: int = INT_MAX) -> int:
    """A whole number (of Python or numpy, but no bool) from `least` to `most`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        span = f"{least} or more" if most == INT_MAX and (number or 0) <= most else f"{least} to {most}"
        raise InvalidArgument(f"{name} must be a whole number, {span}, not {shown(value)}")
    return number


def check_text(name: str, value: Any) -> str:
    """A str that can be sent."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is a str, not {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name} is not valid Unicode: {shown(value)}; {error}") from error
    return value


def check_properties(properties: Any) -> dict[str, str]:
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        raise InvalidArgument(
            f'properties is a dict of str to str, such as {{"owner": "ana"}}, not {shown(properties)}'
        )
    return {
        check_text("each key of properties", key): check_text(f"properties[{shown(key)}]", value)
        for key, value in properties.items()
    }


def check_names(name: str, value: Any) -> tuple[str, ...]:
    """Names of columns: a list of them, or anything else that yields them, but not one name alone."""
    if isinstance(value, (str, bytes)):
        raise InvalidArgument(f"{name} is a list of columns: [{shown(value)}]")
    if not isinstance(value, Iterable):
        raise InvalidArgument(f'{name} is a list of columns, such as ["a", "b"], not {shown(value)}')
    return tuple(check_text(f"each of {name}", each) for each in value)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise InvalidArgument(f"{name} must be one of {', '.join(map(repr, choices))}, not {shown(value)}")
    return value
