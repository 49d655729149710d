"""Every request of a writer fails, in every way, at every pair of nodes: nothing that was acknowledged is lost."""

from __future__ import annotations

from ebla.actors.journal.errors import QuorumFailed
from tests.journal.line import DROP, Line
from tests.journal.stage import Stage, play

# format is sent before the faults: index 1 of the list that this table comes from is "no fault" here.
REQUESTS = [
    "journal_state",
    "new_epoch",
    "start_segment",
    "journal",
    "finalize",
    "start_segment",
    "journal",
    "finalize",
]
INDEXES = range(1, 10)


async def two_segments(stage: Stage, line: Line) -> int:
    """The workload: the last edit that was counted, which is after its segment's finalize."""
    hand, counted = stage.hand(line), 0
    try:
        await hand.recover()
        for _ in range(2):
            await hand.write(3)
            await hand.finalize()
            counted = hand.end.txid
    except QuorumFailed:
        pass  # only the faults make it fail: the first test runs without
    hand.session.close()
    return counted


async def base_case(stage: Stage, faults: dict[tuple[str, int], str]) -> tuple[int, int, int]:
    line = Line(faults)
    counted = await two_segments(stage, line)
    acked = max(stage.acked, default=0)
    await line.release()
    end = await stage.finish()
    return counted, acked, end.txid


def test_the_requests_of_the_workload_are_those_that_the_table_counts():
    async def scenario(stage: Stage) -> None:
        line = Line()
        assert await two_segments(stage, line) == 6
        assert line.trace == dict.fromkeys(stage.nodes, REQUESTS)

    play(scenario)


def expected(a: int, b: int) -> tuple[int, int, set[int]]:
    """Counted, acknowledged, and what may be recovered, for requests a and b dropped at two of three nodes."""
    pair = {(a, b)}
    if pair <= {(2, 2), (3, 3), (4, 4)}:
        return 0, 0, {0}
    if pair <= {(4, 5), (5, 4), (5, 5)}:
        return 0, 0, {0, 3}
    if pair <= {(4, 6), (5, 6), (6, 4), (6, 5), (6, 6)}:
        return 0, 3, {3}
    if pair <= {(7, 7)}:
        return 3, 3, {3}
    if pair <= {(7, 8), (8, 7), (8, 8)}:
        return 3, 3, {3, 6}
    if pair <= {(7, 9), (8, 9), (9, 7), (9, 8), (9, 9)}:
        return 3, 6, {6}
    return 6, 6, {6}


def test_dropping_any_request_at_each_of_two_nodes_gives_what_the_table_says():
    for a in INDEXES:
        for b in INDEXES:
            faults = {("journal/a", a - 1): DROP, ("journal/b", b - 1): DROP}
            counted, acked, recovered = play(lambda stage, faults=faults: base_case(stage, faults))
            want = expected(a, b)
            assert (counted, acked) == want[:2], (a, b)
            assert recovered in want[2], (a, b)
