"""Settings of a log; `ebla.errors` has the errors of its use."""

from __future__ import annotations

import msgspec

from ebla.actors.ledger import metadata as meta
from ebla.errors import LogFenced as LogFenced
from ebla.errors import RecordsTrimmed as RecordsTrimmed

ENSEMBLE, WRITE_QUORUM, ACK_QUORUM = 3, 3, 2
ROLL_BYTES, ROLL_S = 64 << 20, 3600.0
RECORD_BYTES_MAX = 8 << 20
PRODUCER_BYTES_MAX = 64  # of a producer's name


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`ensemble`, `write_quorum`, `ack_quorum`: on how many stores, see docs/logs.md. `retain_s`, `retain_bytes`: older records may be
    deleted, whole ledgers at a time; None keeps all. `roll_bytes`, `roll_s`: the writer begins a new ledger at this size or age."""

    ensemble: int = ENSEMBLE
    write_quorum: int = WRITE_QUORUM
    ack_quorum: int = ACK_QUORUM
    retain_s: float | None = None
    retain_bytes: int | None = None
    roll_bytes: int = ROLL_BYTES
    roll_s: float = ROLL_S

    def validate(self) -> None:
        meta.check_quorums(self.ensemble, self.write_quorum, self.ack_quorum)
