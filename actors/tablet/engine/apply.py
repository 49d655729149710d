"""Application of a committed batch of rows to a replica. Deterministic: every replica gets the same answer.

A batch that was applied before (a retry that reached the log twice) changes nothing and gets the
first answer. A batch that cannot be applied, because of its content, because of the resulting rows,
or because the table is dropped, changes nothing and gets a typed error. If the reason may pass, the
error is stored like any other answer: the client knows that the request failed, so a late copy of
it must not be applied. Applying must never raise: every start applies committed entries again. Only
damage of stored data raises (Corruption), and fails this replica alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add

from ebla.actors.errors import (
    RequestReused,
    SchemaMismatch,
    StaleRequest,
    TableDropped,
    from_triple,
    to_triple,
)
from ebla.actors.messages import DELETE, INSERT, UPDATE, UPSERT, RowBatch
from ebla.actors.tablet.engine.batches import check_batch, columnar
from ebla.storage.errors import Corruption, EblaError, InvalidArgument
from ebla.storage.logs.entries import Entry
from ebla.storage.rows.alteration import Alteration, Dropped
from ebla.storage.rows.codecs import codec_of
from ebla.storage.rows.ragged import objects
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import DEFAULT_BYTES_MAX, ROW_BYTES_MAX, TableSchema
from ebla.storage.tablets.memtable import UNFLUSHED_BYTES_MAX
from ebla.storage.tablets.results import Answer
from ebla.storage.tablets.tablet_store import TabletStore

READ_ROWS_MAX = 512  # old rows read at a time: each may have ROW_BYTES_MAX
PATCH_BYTES_MAX = 16 << 20  # old rows and patches processed at a time
# The limit of what one update may add to the memtable, which its own bytes do not limit.
UPDATE_BYTES_MAX = 256 << 20


class Rows:
    """The rows of one replica: its store, and the codec of their schema. `dropped`: the table is
    kept, and must be recalled before it serves again."""

    def __init__(
        self, store: TabletStore, codec: RowCodec, seed: int, dropped: Dropped | None = None
    ) -> None:
        self.store = store
        self.codec = codec
        self.seed = seed
        self.dropped = dropped

    @property
    def schema(self) -> TableSchema:
        return self.codec.schema

    def refusal(self) -> TableDropped | None:
        dropped = self.dropped
        return TableDropped.of(dropped.table, dropped.name, dropped.until_us) if dropped else None

    def alter(self, alteration: Alteration, encoded: bytes) -> None:
        """Apply an alteration; called in log order. Raises InvalidArgument if this server cannot
        use the schema."""
        if alteration.schema.version <= self.schema.version:
            return
        self.codec = codec_of(alteration.schema)
        found, wanted = self.schema.version, alteration.schema.version
        assert found == wanted, ("an alteration is in force once applied", found, wanted)
        self.dropped = alteration.dropped
        self.store.alter(encoded)

    def full(self, unflushed_bytes_max: int, *, alters: bool) -> bool:
        """Whether the next entry (`alters`: an alteration) must wait for a flush. A flush of columns, and a scan, give the rows
        of an older layout the defaults of later columns, of which memtables have no bytes."""
        held, rows = self.store.memory_bytes, self.store.unflushed_rows
        if held > unflushed_bytes_max:
            return True
        if held + rows * DEFAULT_BYTES_MAX <= UNFLUSHED_BYTES_MAX:
            return False
        widest = max(len(column.default or b"") for column in self.schema.columns)
        return held + rows * (DEFAULT_BYTES_MAX if alters else widest) > UNFLUSHED_BYTES_MAX

    def known_answer(self, batch: RowBatch) -> Answer | EblaError | None:
        """The answer to an earlier try of this request, if that was applied here."""
        results = self.store.results
        answer = results.find(batch.client, batch.sequence)
        if answer is not None:
            if answer.digest != batch.digest:
                return RequestReused(
                    f"request {batch.client.hex()}/{batch.sequence} was used before with other rows, or for another change of them; "
                    "take a fresh sequence for each batch"
                )
            return answer if answer.refusal is None else _refused_before(batch, from_triple(answer.refusal))
        if results.forgotten(batch.client, batch.sequence):
            return StaleRequest(
                f"the answer to request {batch.client.hex()}/{batch.sequence} is no longer kept"
            )
        return None

    def apply(self, entry: Entry, batch: RowBatch) -> Answer | EblaError:
        """Apply a batch; called in log order, once per entry."""
        known = self.known_answer(batch)
        if known is not None:
            return known
        try:
            check_batch(self.codec.schema, batch)
        except (InvalidArgument, SchemaMismatch) as error:
            return error  # by its own bytes: it is invalid in any state, and its id may be invalid too
        refusal: EblaError | None = self.refusal()
        rejected: list[int] = []
        if refusal is None:
            try:
                rejected = self._change(batch)
            except InvalidArgument as error:
                refusal = error
        kept = None if refusal is None else to_triple(refusal)
        answer = Answer(batch.digest, entry.index, tuple(rejected), kept)
        self.store.results.record(batch.client, batch.sequence, batch.first_incomplete, entry.time_us, answer)
        return refusal or answer

    def _change(self, batch: RowBatch) -> list[int]:
        if batch.columnar:
            return self._change_columns(batch)
        if batch.kind == UPSERT:
            self.store.put(batch.keys, batch.values)
            return []
        if batch.kind == INSERT:
            fresh, rejected = self._fresh(batch.keys)
            self.store.put([batch.keys[at] for at in fresh], [batch.values[at] for at in fresh])
            return rejected
        if batch.kind == DELETE:
            return self._delete(batch.keys)
        assert batch.kind == UPDATE, ("a checked batch has a known kind", batch.kind)
        return self._update(batch)

    def _change_columns(self, batch: RowBatch) -> list[int]:
        try:
            rows = columnar(self.codec, batch, None)
            rows.check()
        except Corruption as error:
            raise InvalidArgument(f"these are no rows of the table: {error}") from error
        if batch.kind == UPSERT:
            self.store.put_batch(rows)
            return []
        fresh, rejected = self._fresh(objects(rows.keys()))
        if fresh:
            self.store.put_batch(rows.only(fresh) if rejected else rows)
        return rejected

    def _fresh(self, keys: Sequence[bytes]) -> tuple[list[int], list[int]]:
        """The places of the rows that can be inserted, and of the others."""
        fresh: dict[bytes, int] = {}
        rejected: list[int] = []
        for at, there in enumerate(self._present(keys)):
            if there or keys[at] in fresh:
                rejected.append(at)
            else:
                fresh[keys[at]] = at
        assert len(fresh) + len(rejected) == len(keys), ("each row is inserted or rejected", len(keys))
        return list(fresh.values()), rejected

    def _delete(self, keys: Sequence[bytes]) -> list[int]:
        gone: dict[bytes, None] = {}
        rejected: list[int] = []
        for at, there in enumerate(self._present(keys)):
            key = keys[at]
            if not there or key in gone:
                rejected.append(at)
            else:
                gone[key] = None
        assert len(gone) + len(rejected) == len(keys), ("each row is deleted or rejected", len(keys))
        self.store.delete(list(gone))
        return rejected

    def _present(self, keys: Sequence[bytes]) -> Iterator[bool]:
        """Whether each key is present. No row may change before the last key is read."""
        for start in range(0, len(keys), READ_ROWS_MAX):
            yield from self.store.contains(keys[start : start + READ_ROWS_MAX])

    def _update(self, batch: RowBatch) -> list[int]:
        """Apply the patches of a batch. Later patches of a key see the earlier ones. Every new row
        is made before the first one is stored."""
        patch_codec = self.codec.of_patch(batch.columns, batch.schema_version)
        fresh: dict[bytes, bytes] = {}
        rejected: list[int] = []
        made_bytes = 0
        for run in _distinct_runs(batch.keys):
            keys = [batch.keys[at] for at in run]
            stored = self.store.get_many(keys)
            old = {at: fresh.get(key, value) for at, key, value in zip(run, keys, stored, strict=True)}
            rejected.extend(at for at, value in old.items() if value is None)
            present = {at: value for at, value in old.items() if value is not None}
            for places in _pieces(batch, present):
                for at, value in zip(places, self._patched(batch, places, present, patch_codec), strict=True):
                    fresh[batch.keys[at]] = value
                    made_bytes += len(value)
                if made_bytes > UPDATE_BYTES_MAX:
                    raise InvalidArgument(
                        f"the rows that this update changes take more than {UPDATE_BYTES_MAX} bytes together in one "
                        "tablet; update fewer rows at a time",
                        row=places[-1],
                    )
        self.store.put(list(fresh), list(fresh.values()))
        return rejected

    def _patched(
        self, batch: RowBatch, places: list[int], old: dict[int, bytes], patch_codec: RowCodec
    ) -> list[bytes]:
        """The new values at these places of the batch. Raises InvalidArgument if the batch is at
        fault, Corruption if a stored row is."""
        keys = [batch.keys[at] for at in places]
        patches = [batch.values[at] for at in places]
        joined = [key + old[at] for key, at in zip(keys, places, strict=True)]
        try:
            return self.codec.patch(joined, keys, patches, patch_codec, self.seed)
        except InvalidArgument as error:
            if error.row is None:
                raise
            at = places[error.row]
            raise InvalidArgument(
                f"row {at}: with this update the row would be over the limit of {ROW_BYTES_MAX} bytes; keep large "
                "values in files or in Ray's object store, and their names in the table",
                row=at,
            ) from error
        except Corruption:
            self._check_patches(keys, patches, patch_codec)
            raise

    def _check_patches(self, keys: list[bytes], patches: list[bytes], patch_codec: RowCodec) -> None:
        try:
            patch_codec.verify(list(map(add, keys, patches)), self.seed)
        except Corruption as error:
            raise InvalidArgument(
                f"these are no values of {', '.join(patch_codec.names)}: {error}"
            ) from error


def _refused_before(batch: RowBatch, error: EblaError) -> EblaError:
    message = (
        f"{error.message} (this is the answer to the first try of request {batch.client.hex()}/{batch.sequence}, which is kept; "
        "to try again, take a fresh write id)"
    )
    return type(error)(message, **error.values())


def _distinct_runs(keys: Sequence[bytes]) -> list[list[int]]:
    """Split the positions, in order, into runs of READ_ROWS_MAX keys at most, without a repeated key."""
    runs: list[list[int]] = [[]]
    seen: dict[bytes, None] = {}
    for at, key in enumerate(keys):
        if key in seen or len(seen) == READ_ROWS_MAX:
            runs.append([])
            seen.clear()
        seen[key] = None
        runs[-1].append(at)
    return runs


def _pieces(batch: RowBatch, old: dict[int, bytes]) -> Iterator[list[int]]:
    """The places of `old` in order, cut so that the rows and patches at them stay within PATCH_BYTES_MAX."""
    places: list[int] = []
    size = 0
    for at, value in old.items():
        row_bytes = len(batch.keys[at]) + len(value) + len(batch.values[at])
        if places and size + row_bytes > PATCH_BYTES_MAX:
            yield places
            places, size = [], 0
        places.append(at)
        size += row_bytes
    if places:
        yield places
