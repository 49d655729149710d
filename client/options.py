"""The client's limits, and the types of arguments and results.

The sizes follow from the cost of a call: it is constant up to about 100 KiB, then rises, and pays off again from about 1 MB
on. So a call stays below CALL_SMALL_BYTES, or has at least CALL_LARGE_MIN_BYTES if that much is to be sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

DEADLINE_S = 60.0  # for one row, or one batch of rows of a large call
WAIT_S = 60.0  # for the tablets of a new table
MASTER = "master/0"
INT_MAX = (1 << 63) - 1  # the largest number in messages

# An attempt is short, so that a silent server costs little; the request is sent again with the same id.
ATTEMPT_S = 1.5
# A server that was silent gets a short attempt, twice as long after each further silence: if it is gone, another server may
# lead; if it is slow, it must get its time in the end.
ATTEMPT_PROBE_S = 0.5
ATTEMPT_PROBE_DOUBLINGS_MAX = 3
ATTEMPT_BYTES_PER_S = 500_000
ATTEMPT_GRACE_S = 0.25  # the server gives up a little before the client, so that its reason arrives
ASK_ATTEMPT_S = 10.0  # scans and flushes: a selective condition or a full memtable takes long
SUSPECT_S = 1.0  # how long a silent server is asked last

THROTTLE_MAX_S = 5.0
HOPS_MAX = 3  # hints followed without a pause
SWEEP_S = 0.2  # how often deadlines are checked: operations have no timers of their own

COLUMNAR_ROWS_MIN, COLUMNAR_ROWS_PER_COLUMN = 8, 2  # fewer rows of a batch are cheaper packed one by one
UNIT_BYTES = 80_000  # rows of one tablet that are sent, logged and answered as one
CALL_SMALL_BYTES = 88_000
CALL_LARGE_MIN_BYTES = 1_050_000
CALL_LARGE_BYTES = 1_250_000
# One small call to a server is under way at a time, and the next takes everything that queued meanwhile: a call costs far
# more than its rows. If a call takes longer than PATIENCE_S, others are sent beside it.
SMALL_CALLS_MAX = 4
PATIENCE_S = 0.05
LARGE_CALLS_MAX = 4
UNANSWERED_BYTES_MAX = 24_000_000  # of one bulk call
SLICE_ROWS_MAX = 16_384
SLICE_BYTES = 4_000_000
KEYS_MAX = 2_000  # of one tablet in one get_many unit

REJECTED_SHOWN_MAX = 10  # positions in a repr

SCAN_TABLETS_MAX = 4  # read at the same time
SCAN_OTHERS_MAX = 32  # small tablets that are read with another one, in one call
SCAN_BLOCKS_AHEAD = 4
SCAN_KEPT_S = 600.0  # a snapshot, while the caller is busy with a block
SCAN_KEEP_EVERY_S = 15.0  # a server ends a scan without requests after `scanner_ttl_s`, 60 s
SCAN_TRIES_MAX = 3  # for one block, at the server that holds the snapshot


class Written(NamedTuple):
    """The outcome of a write.

    Attributes:
        rows: The number of rows that were applied.
        rejected: The positions of the other rows in the call: those that were present already (`insert`), or absent (`update`,
            `delete`).
    """

    rows: int
    rejected: tuple[int, ...] = ()

    def __repr__(self) -> str:
        if not self.rejected:
            return f"Written(rows={self.rows})"
        shown = [str(at) for at in self.rejected[:REJECTED_SHOWN_MAX]]
        left_out = len(self.rejected) - len(shown)
        more = [f"... {left_out} more"] if left_out else []
        last = "," if len(self.rejected) == 1 else ""
        return f"Written(rows={self.rows}, rejected=({', '.join(shown + more)}{last}))"


class WriteId(NamedTuple):
    """A caller's id for a call that may be repeated later, even by another process.

    A repeated call must have the same rows in the same order and form: rows in memory again in memory, a stream again as a
    stream (docs/data.md). It changes nothing and gets the first answer, also if that was a refusal.

    Attributes:
        client: 16 bytes that no other caller uses.
        sequence: The number of the call's first row. The row at position p belongs to a request numbered `sequence` + p or lower,
            so the next call of the same `client` continues at `sequence` + len(rows).
    """

    client: bytes
    sequence: int


# -- types of arguments, for type checkers and editors; ebla.storage.rows.convert checks the values ------------

Row = dict[str, Any]


class ArrowStream(Protocol):
    """Rows that any library of the Arrow family offers: a Table, a reader, a DataFrame of pandas or Polars."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowBatch(Protocol):
    """A RecordBatch of any library of the Arrow family."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object: ...


Rows = Mapping[str, Any] | Iterable[Mapping[str, Any] | ArrowBatch] | ArrowStream | ArrowBatch
WriteIdLike = tuple[bytes, int]
IfRefused = Literal["error", "ignore"]
