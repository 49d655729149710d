"""Journal nodes in virtual time, writers driven by hand, and the verdict on the contents of a journal."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ebla.actors import messages as am
from ebla.actors.journal import messages as m
from ebla.actors.journal import records
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.node.rules import View
from ebla.actors.journal.options import JournalNodeOptions, JournalOptions
from ebla.actors.journal.records import digest_of, first_digest
from ebla.actors.journal.writer.channel import ChannelStatus
from ebla.actors.journal.writer.reader import JournalReader
from ebla.actors.journal.writer.recovery import End, recover
from ebla.actors.journal.writer.session import Session, format_journal
from ebla.actors.journal.writer.writer import JournalWriter
from ebla.actors.world import World
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.points import Points
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.storage.environment import Environment
from tests.journal.line import Line

JOURNAL = m.JournalId("edits", "one")
A, B, C = "journal/a", "journal/b", "journal/c"
PATH = "journals/edits"
Scenario = Callable[["Stage"], Coroutine[Any, Any, Any]]


class Stage:
    """Nodes `journal/a`, `journal/b`, ... and one journal on them."""

    def __init__(self, count: int = 3, sync_s: float = 1e9, **options: Any) -> None:
        self.points = Points()
        self.cluster = SimulatedCluster(self.points.of)
        self.cluster.network.slow_probability = 0.0  # a delay orders the answers
        self.nodes = tuple(f"journal/{name}" for name in "abcdefg"[:count])
        self.options = JournalOptions(journal=JOURNAL, nodes=self.nodes, **options)
        self.node_options = JournalNodeOptions(sync_s=sync_s)  # off by default: it has its own tests
        self.outside = self.cluster.client_world("outside")
        self.acked: dict[int, bytes] = {}
        self._worlds = 0

    async def open(self) -> None:
        for node in self.nodes:
            await self.cluster.start(node, lambda world: JournalNode(world, self.node_options))
        await format_journal(self.outside, self.options)

    async def afresh(self) -> None:
        """Replace the journal by an empty one."""
        self.acked.clear()
        await format_journal(self.outside, self.options, force=True)

    def role(self, node: str) -> JournalNode:
        found: JournalNode = self.cluster.role(node)
        return found

    def environment(self, node: str) -> Environment:
        """The journal on the node's disk, read without the node."""
        return self.role(node).journals[JOURNAL.name]._environment

    def view(self, node: str) -> View:
        return self.role(node).journals[JOURNAL.name].view

    def world(self) -> World:
        self._worlds += 1
        return self.cluster.client_world(f"writer-{self._worlds}")

    def hand(self, line: Line | None = None) -> Hand:
        """A new writer; `line` is its network, perfect by default."""
        return Hand(self, Session(self.line_world(line), self.options))

    async def wrote(self, count: int, line: Line | None = None) -> Hand:
        """A new writer, in a segment of so many edits."""
        hand = self.hand(line)
        await hand.recover()
        await hand.write(count)
        return hand

    def line_world(self, line: Line | None) -> World:
        world = self.world()
        if line is None:
            return world
        line.inner, line.restart = world.network, self.cluster.restart
        return replace(world, network=line)

    def reader(self) -> JournalReader:
        return JournalReader(self.outside, self.options)

    async def ask(self, node: str, method: str, request: Any, reply: Any) -> Any:
        return await self.outside.network.call(node, method, request, reply, 10.0)

    async def read(self, node: str, after: int, *, in_progress: bool) -> m.Edits:
        request = m.ReadRequest(JOURNAL, after, 1 << 20, in_progress)
        found: m.Edits = await self.ask(node, "read", request, m.Edits)
        return found

    async def manifest(self, node: str) -> m.Manifest:
        found: m.Manifest = await self.ask(node, "manifest", m.ManifestRequest(JOURNAL), m.Manifest)
        return found

    async def status(self, node: str) -> m.JournalNodeStatus:
        found: m.JournalNodeStatus = await self.ask(node, "journal_status", am.Empty(), m.JournalNodeStatus)
        return found

    def crash_at(self, node: str, point: str) -> None:
        self.points.arm(node, point, lambda: self.cluster.crash(node))

    def stamp(self, epoch: int, serial: int, committed: int = 0) -> m.Stamp:
        return m.Stamp(JOURNAL, epoch, serial, committed)

    def note(self, acknowledged: Iterable[tuple[int, bytes]]) -> None:
        """A writer got the answer that these are durable."""
        for txid, edit in acknowledged:
            was = self.acked.setdefault(txid, edit)
            assert was == edit, f"{txid} was acknowledged as {was!r} and as {edit!r}"

    # -- the verdict -----------------------------------------------------------------------------------------

    async def judge(self, end: End) -> list[bytes]:
        """The edits that a reader finds after a recovery to `end`: complete, with every acknowledged edit unchanged, and
        equal in all final copies."""
        page = await self.reader().read_all(self.reader().beginning())
        txids = [txid for txid, _ in page.edits]
        assert txids == list(range(1, end.txid + 1)), (txids, end)
        assert page.position.digest == end.digest
        edits = [edit for _, edit in page.edits]
        for txid, edit in self.acked.items():
            assert txid <= end.txid, f"{txid} was acknowledged, the journal ends at {end.txid}"
            assert edits[txid - 1] == edit, f"{txid} was acknowledged as {edit!r} and is {edits[txid - 1]!r}"
        self.judge_copies()
        return edits

    async def sound(self) -> None:
        """A clean recovery, and all copies are good."""
        await self.hand().recover()
        self.judge_copies()

    def judge_copies(self) -> None:
        """Final copies of a segment are equal, and every copy fits its header."""
        final: dict[int, tuple[str, m.SegmentState]] = {}
        for node in self.nodes:
            if not self.cluster.alive(node):
                continue
            environment = self.environment(node)
            for segment in self.view(node).all():
                if segment.count:
                    records.load_edits(environment, segment, segment.start, segment.end, 1 << 30, node)
                if segment.finalized:
                    first_node, first = final.setdefault(segment.start, (node, segment.state))
                    assert segment.state.same_edits(first), (
                        segment.start,
                        first_node,
                        first,
                        node,
                        segment.state,
                    )

    async def finish(self) -> End:
        """A clean writer recovers, is judged, writes and finalizes three more, and is judged again."""
        clean = self.hand()
        end = await clean.recover()
        await self.judge(end)
        await clean.write(3)
        await clean.finalize()
        clean.session.close()
        await self.judge(clean.end)
        return end


class Hand:
    """A writer without buffers and markers: the test calls each step. Edits have a tag of their epoch, so two writers
    never write the same; the stage records edits that a majority acknowledged."""

    def __init__(self, stage: Stage, session: Session) -> None:
        self.stage = stage
        self.session = session
        self.end = End(0, first_digest(JOURNAL))
        self.segment = 0

    async def recover(self) -> End:
        self.end = await recover(self.session)
        return self.end

    async def start(self) -> None:
        self.segment = self.end.txid + 1
        await self.session.start_segment(self.segment, self.end.digest)

    async def send(self, count: int) -> None:
        """One flush of `count` edits."""
        first = self.end.txid + 1
        edits = [f"{self.session.epoch}:{txid}".encode() for txid in range(first, first + count)]
        self.end = End(self.end.txid + count, digest_of(self.end.digest, first, edits))
        await self.session.send(self.segment, first, edits, self.end.digest)
        self.stage.note(enumerate(edits, first))

    async def write(self, count: int, flushes: Sequence[int] | None = None) -> None:
        """A segment of `count` edits, in one flush or in the given ones."""
        await self.start()
        for size in flushes or [count]:
            await self.send(size)

    async def finalize(self) -> None:
        await self.session.finalize(self.segment, self.end.txid, self.end.digest)


async def writer_of(stage: Stage, line: Line | None = None) -> JournalWriter:
    writer = JournalWriter(stage.line_world(line), stage.options)
    await writer.open()
    await writer.begin()
    return writer


def status_of(writer: JournalWriter, node: str) -> ChannelStatus:
    return next(status for status in writer.statuses() if status.node == node)


def play(scenario: Scenario, seed: int = 0, count: int = 3, **options: Any) -> Any:
    async def main() -> Any:
        stage = Stage(count, **options)
        await stage.open()
        return await scenario(stage)

    return loop.run(main(), seed)


def scenarios_of(module: str) -> list[Scenario]:
    """List the coroutine functions of a module whose only parameter is the stage."""
    functions = inspect.getmembers(sys.modules[module], inspect.iscoroutinefunction)
    return [
        each
        for _, each in functions
        if each.__module__ == module and list(inspect.signature(each).parameters) == ["stage"]
    ]
