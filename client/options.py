"""What the client may touch, its limits, and the small values that its calls return.

The sizes follow from the cost of a call: flat up to about 100 KiB, then again worth it from about 1 MB on. So a call
stays under CALL_SMALL_BYTES, or is made of at least CALL_LARGE_MIN_BYTES where there is that much to send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ebla.actors.world import Clock, Network, Random, Spawn

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
MASTER_ATTEMPT_OF_SEVERAL_S = 0.8  # another one may be the active one by now
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
    order; it then changes nothing and gets the first answer, also if that was a refusal.
    """

    client: bytes
    sequence: int
