"""Figures of journal nodes and writers."""

from __future__ import annotations

import pytest

from ebla.actors.figures import Figures, FiguresRequest
from ebla.actors.journal.messages import JournalId
from ebla.actors.journal.node import measures
from ebla.actors.journal.options import JournalOptions
from ebla.actors.journal.records import STATE, STATE_KEY
from ebla.actors.journal.writer import measures as writer_measures
from ebla.actors.journal.writer.session import format_journal
from ebla.actors.journal.writer.writer import JournalWriter
from ebla.storage.environment import Put
from ebla.storage.errors import Corruption
from tests.figures import by_series, figures_of, kinds, listed
from tests.journal.rejoining import catch_up, next_segment, replace
from tests.journal.stage import PATH, Stage, play
from tests.journal.test_sync import segments
from tests.journal.test_writer import A, C, writer_of
from tests.staged import staged


def lines(writer: JournalWriter) -> dict[str, float]:
    return by_series(writer_measures.measure_lines(writer.statuses()))


@staged(play)
async def test_the_figures_of_a_node_follow_its_edits(stage: Stage) -> None:
    before = figures_of(stage.role(A))
    writer = await writer_of(stage)
    for edit in (b"one", b"two", b"three"):
        await writer.append(edit)
    await stage.outside.clock.sleep(1.0)  # the other two may be the majority
    after = figures_of(stage.role(A))
    assert (before["journal_promised_epoch/edits"], before["journal_last_txid/edits"]) == (0, 0)
    assert (after["journal_promised_epoch/edits"], after["journal_writer_epoch/edits"]) == (1, 1)
    assert (after["journal_last_txid/edits"], after["journal_segments/edits"]) == (4, 1)
    assert after["journal_edits/edits"] == after["journal_batches/edits"] == 4  # with the marker
    assert after["journal_bytes/edits"] == len(b"onetwothree")
    assert after["journal_syncs/edits"] > before["journal_syncs/edits"]
    assert 0 < after["journal_sync_p50_ms/edits"] <= after["journal_sync_p99_ms/edits"]
    assert not after["journal_rejoining/edits"] and not after["journal_damaged_segments/edits"]


@staged(play, return_s=1000000.0)
async def test_the_lag_of_a_node_is_in_its_figures_and_the_writers(stage: Stage) -> None:
    writer = await writer_of(stage)
    await writer.append(b"everywhere")
    stage.cluster.crash(C)
    for edit in (b"not", b"on", b"the", b"third"):
        await writer.append(edit)
    await stage.outside.clock.sleep(stage.options.write_timeout_s)
    behind = lines(writer)
    assert behind[f"writer_out_of_sync/{C}"] == 1 and behind[f"writer_out_of_sync/{A}"] == 0
    assert behind[f"writer_lag_txns/{C}"] == 4 and behind[f"writer_lag_txns/{A}"] == 0
    assert behind[f"writer_lag_ms/{C}"] > 0
    assert behind[f"writer_sent_batches/{A}"] > behind[f"writer_sent_batches/{C}"]
    assert 0 < behind[f"writer_rpc_p50_ms/{A}"] <= behind[f"writer_end_to_end_p99_ms/{A}"]
    await stage.cluster.restart(C)
    await writer.append(b"told of by a heartbeat")
    await stage.outside.clock.sleep(5 * stage.options.heartbeat_s)
    assert figures_of(stage.role(C))["journal_lag_txns/edits"] == 5
    assert figures_of(stage.role(A))["journal_lag_txns/edits"] == 0


@staged(play)
async def test_a_damaged_journal_is_counted(stage: Stage) -> None:
    assert figures_of(stage.role(A))["journal_unserved"] == 0
    await stage.environment(A).commit([Put(STATE, [(STATE_KEY, b"no state at all")])])
    stage.cluster.crash(A)
    await stage.cluster.restart(A)
    after = figures_of(stage.role(A))
    assert after["journal_unserved"] == 1 and "journal_edits/edits" not in after


@staged(play, sync_s=10.0)
async def test_a_damaged_segment_is_counted_until_it_is_fetched_again(stage: Stage) -> None:
    await segments(stage, 2)
    sound = figures_of(stage.role(A))
    key = stage.environment(A).items("edits")[1][0]
    stage.cluster.state(A).rot(PATH, "edits", key)
    with pytest.raises(Corruption):
        await stage.read(A, 0, in_progress=False)
    assert figures_of(stage.role(A))["journal_damaged_segments/edits"] == 1
    await stage.outside.clock.sleep(25.0)
    mended = figures_of(stage.role(A))
    assert mended["journal_damaged_segments/edits"] == 0
    assert mended["journal_synced_segments/edits"] == sound["journal_synced_segments/edits"] + 1
    await stage.read(A, 0, in_progress=False)
    assert figures_of(stage.role(A))["journal_served_edits/edits"] > mended["journal_served_edits/edits"]


@staged(play)
async def test_a_node_that_lost_its_directory_rejoins_until_it_counts_again(stage: Stage) -> None:
    hand = await stage.wrote(3)
    await replace(stage)
    assert figures_of(stage.role(A))["journal_rejoining/edits"] == 1
    await next_segment(hand)
    await catch_up(stage)
    after = figures_of(stage.role(A))
    assert after["journal_rejoining/edits"] == 0 and after["journal_last_txid/edits"] > 3


@staged(play)
async def test_a_node_reports_a_bounded_number_of_journals(stage: Stage) -> None:
    for number in range(measures.JOURNALS_MAX + 3):
        journal = JournalId(f"more-{number}", "one")
        await format_journal(stage.outside, JournalOptions(journal=journal, nodes=stage.nodes))
    answer = await stage.ask(A, "figures", FiguresRequest(), Figures)
    assert kinds(answer.figures) == listed(measures.SHEETS)
    of_journals = len(measures.JOURNAL.definitions) * measures.JOURNALS_MAX
    assert len(answer.figures) == len(measures.NODE.definitions) + of_journals
