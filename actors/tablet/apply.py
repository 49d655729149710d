"""What a committed batch of rows does to a replica. Deterministic: every replica gets the same answer.

A batch that was applied before (a retry that reached the log twice) changes nothing and gets the first answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ebla.actors.errors import RequestReused, StaleRequest
from ebla.actors.messages import DELETE, INSERT, UPDATE, UPSERT, RowBatch
from ebla.storage.entries import Entry
from ebla.storage.errors import EblaError
from ebla.storage.results import Answer
from ebla.storage.rows import RowCodec
from ebla.storage.tablet_store import TabletStore

PATCH_CODECS_MAX = 64  # column sets whose codec is kept ready

decode_batch = msgspec.msgpack.Decoder(RowBatch).decode


class Rows:
    """The rows of one replica: its store, and the codec that knows their schema."""

    def __init__(self, store: TabletStore, codec: RowCodec, seed: int) -> None:
        self.store = store
        self.codec = codec
        self.seed = seed
        self._patch_codecs: dict[tuple[str, ...], RowCodec] = {}

    def known_answer(self, batch: RowBatch) -> Answer | EblaError | None:
        """What an earlier try of this request was answered, if it was applied here."""
        results = self.store.results
        answer = results.find(batch.client, batch.sequence)
        if answer is not None:
            if answer.digest != batch.digest:
                return RequestReused(
                    f"request {batch.client.hex()}/{batch.sequence} was used before with other rows; "
                    "take a fresh sequence for each batch"
                )
            return answer
        if results.forgotten(batch.client, batch.sequence):
            return StaleRequest(
                f"the answer to request {batch.client.hex()}/{batch.sequence} is no longer kept"
            )
        return None

    def apply(self, entry: Entry, batch: RowBatch) -> Answer | EblaError:
        """Called in log order, once per entry."""
        known = self.known_answer(batch)
        if known is not None:
            return known
        rejected = self._change(batch)
        answer = Answer(batch.digest, entry.index, tuple(rejected))
        self.store.results.record(batch.client, batch.sequence, batch.first_incomplete, entry.time_us, answer)
        return answer

    def _change(self, batch: RowBatch) -> list[int]:
        if batch.kind == UPSERT:
            self.store.put(batch.keys, batch.values)
            return []
        if batch.kind == INSERT:
            return self._insert(batch.keys, batch.values)
        if batch.kind == DELETE:
            return self._delete(batch.keys)
        assert batch.kind == UPDATE, batch.kind
        return self._update(batch)

    def _insert(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[int]:
        fresh: dict[bytes, bytes] = {}
        rejected: list[int] = []
        for at, (key, old) in enumerate(zip(keys, self.store.get_many(keys), strict=True)):
            if old is not None or key in fresh:
                rejected.append(at)
            else:
                fresh[key] = values[at]
        self.store.put(list(fresh), list(fresh.values()))
        return rejected

    def _delete(self, keys: Sequence[bytes]) -> list[int]:
        gone: dict[bytes, None] = {}
        rejected: list[int] = []
        for at, (key, old) in enumerate(zip(keys, self.store.get_many(keys), strict=True)):
            if old is None or key in gone:
                rejected.append(at)
            else:
                gone[key] = None
        self.store.delete(list(gone))
        return rejected

    def _update(self, batch: RowBatch) -> list[int]:
        """Later patches of a key see the earlier ones: a batch is cut wherever a key comes again."""
        patch_codec = self._patch_codec(batch.columns)
        rejected: list[int] = []
        for run in _distinct_runs(batch.keys):
            keys = [batch.keys[at] for at in run]
            old = self.store.get_many(keys)
            present = [at for at, value in zip(run, old, strict=True) if value is not None]
            rejected.extend(at for at, value in zip(run, old, strict=True) if value is None)
            if not present:
                continue
            keys = [batch.keys[at] for at in present]
            joined = [key + value for key, value in zip(keys, filter(None, old), strict=True)]
            patches = [batch.values[at] for at in present]
            self.store.put(keys, self.codec.patch(joined, keys, patches, patch_codec, self.seed))
        return rejected

    def _patch_codec(self, columns: tuple[str, ...]) -> RowCodec:
        codec = self._patch_codecs.get(columns)
        if codec is None:
            if len(self._patch_codecs) >= PATCH_CODECS_MAX:
                self._patch_codecs.clear()
            codec = self._patch_codecs[columns] = RowCodec(self.codec.schema, columns)
        return codec


def _distinct_runs(keys: Sequence[bytes]) -> list[list[int]]:
    """Positions in order, cut so that no run holds a key twice."""
    runs: list[list[int]] = [[]]
    seen: dict[bytes, None] = {}
    for at, key in enumerate(keys):
        if key in seen:
            runs.append([])
            seen.clear()
        seen[key] = None
        runs[-1].append(at)
    return runs
