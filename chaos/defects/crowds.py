"""What planted defects swap where several requests of one client are under way, or one is sent again, and where rows are flushed
beside scans; chaos/defects/planted.py names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ebla.actors.coordination.edits import NodesChanged
from ebla.actors.coordination.namespace import Namespace
from ebla.actors.messages import WriteResult
from ebla.chaos.defects.replication import Swap
from ebla.storage.tablets.memtable import Memtable
from ebla.storage.tablets.results import Answer, Results
from ebla.storage.tablets.tablet_store import TabletStore
from ebla.transport.batches import APPLIED, REJECTED, OpsUnit


def forget_the_lowest_open_request() -> list[Swap]:
    honest = Results.record

    def record(
        self: Results, client: bytes, sequence: int, first_incomplete: int, time_us: int, answer: Answer
    ) -> None:
        honest(self, client, sequence, first_incomplete + 1, time_us, answer)

    return [(Results, "record", record)]


def tell_all_callers_what_the_first_is_told() -> list[Swap]:
    honest = OpsUnit.succeed

    def succeed(self: OpsUnit, result: WriteResult) -> None:
        for op in self.ops:
            if not op.future.done():
                op.future.set_result(REJECTED if 0 in result.rejected else APPLIED)
        honest(self, result)

    return [(OpsUnit, "succeed", succeed)]


def drop_the_answer_to_the_lowest_open_change() -> list[Swap]:
    honest = Namespace._nodes_changed

    def changed(self: Namespace, edit: NodesChanged) -> None:
        honest(self, edit)
        dropped = {edit.unanswered} - {edit.number}
        session = self.sessions[edit.session]
        kept = tuple(answer for answer in session.answers if answer.number not in dropped)
        self.sessions[edit.session] = replace(session, answers=kept)

    return [(Namespace, "_nodes_changed", changed)]


def flush_lets_go_of_what_was_frozen_meanwhile() -> list[Swap]:
    honest = TabletStore.flush

    async def flush(self: TabletStore) -> Any:
        flushed = await honest(self)
        self.frozen = []
        return flushed

    return [(TabletStore, "flush", flush)]


def pass_over_a_single_row_behind_a_block() -> list[Swap]:
    honest = Memtable.range

    def range_(self: Memtable, start: bytes, stop: bytes | None, limit: int) -> Any:
        items, following = honest(self, start, stop, limit)
        if following is not None and honest(self, following, stop, 1)[1] is None:
            following = None
        return items, following

    return [(Memtable, "range", range_)]


def read_the_oldest_of_what_was_frozen() -> list[Swap]:
    honest = TabletStore.get_many

    def get_many(self: TabletStore, keys: Sequence[bytes]) -> list[bytes | None]:
        self.frozen.reverse()
        try:
            return honest(self, keys)
        finally:
            self.frozen.reverse()

    return [(TabletStore, "get_many", get_many)]
