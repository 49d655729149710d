"""Inspections: an operator looks at masters and their journal while they fail, with what `ebla check` and `ebla journal status`
are made of (client/operate/checking.py, client/operate/journals.py).

A look never ends in an error: whoever does not answer is part of the answer. Of the journal each look is compared with
all before it:

    nothing goes back      what a node has promised, whose edits it takes and what it calls committed only grow, over all its
                           starts; so do the epoch of the active master, and what it calls committed
    nobody is ahead        no node calls committed what the active master, who is asked after it, does not
    the end is the end     a finalized segment is the same on every node, and stays so
    nobody is slandered    no node is told to be damaged, or another deployment's

When everything is whole again, `ebla check` says so, and every node of the journal is well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebla.actors.journal.messages import JournalNodeStatus, JournalStatus
from ebla.chaos.checkers.verdict import Verdict, nothing
from ebla.chaos.history import History
from ebla.chaos.workloads.base import Client, Workload, until_stopped
from ebla.health.verdicts import FAILED, HEALTHY, Survey, Unanswered
from ebla.operate import journals
from ebla.operate.checking import check
from ebla.operate.cluster import Cluster
from ebla.operate.waiting import Progress

LOOK_S = 0.8  # between two looks, at most
CHECKS = 0.25  # of the looks are at everything
WELL_S = 60.0  # after everything was healed, until it is well
SILENT = Progress()


@dataclass
class Seen:
    """Of the journal, in all looks: `nodes` by their uuid, `ends` of finalized segments by their start."""

    nodes: dict[str, dict[str, int]] = field(default_factory=dict)
    writer: tuple[int, int] = (0, 0)
    ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def look_at(self, survey: Survey) -> None:
        """The nodes were asked before the active master was."""
        committed = 0
        for address, said in survey.journals.items():
            if isinstance(said, Unanswered):
                continue
            for journal in said.journals:
                self._look_at_node(address, said, journal)
                self._look_at_segments(address, journal)
                committed = max(committed, journal.committed)
        writer = survey.writer
        if writer is None or isinstance(writer, Unanswered):
            return
        now = writer.epoch, writer.committed
        if now < self.writer or now[1] < self.writer[1]:
            self.problems.append(f"epoch and commit of the active master went from {self.writer} to {now}")
        if committed > writer.committed:
            self.problems.append(
                f"a node calls {committed} committed, the active master after it {writer.committed}"
            )
        self.writer = now

    def _look_at_node(self, address: str, said: JournalNodeStatus, journal: JournalStatus) -> None:
        now = {"promised": journal.promised, "writer": journal.writer, "committed": journal.committed}
        before = self.nodes.get(said.uuid, now)
        back = {name: (before[name], now[name]) for name in now if now[name] < before[name]}
        if back:
            self.problems.append(f"{address} went back: {back}")
        self.nodes[said.uuid] = now

    def _look_at_segments(self, address: str, journal: JournalStatus) -> None:
        for state in (segment.state for segment in journal.segments if segment.state.finalized):
            told = self.ends.setdefault(state.start, (state.end, state.digest))
            if told != (state.end, state.digest):
                self.problems.append(
                    f"segment {state.start} ended as {told}, and on {address} as {state.end, state.digest}"
                )


class Inspections(Workload):
    name = "inspections"

    def __init__(self) -> None:
        self.seen = Seen()
        self.looks = 0
        self._operated = False

    async def prepare(self, client: Client) -> None:
        """Nothing: it looks at what the others do."""

    async def run(self, client: Client) -> None:
        """One of the clients is the operator."""
        first, self._operated = not self._operated, True
        cluster = self._cluster(client)

        async def step() -> None:
            await client.clock.sleep(client.random.uniform(0.0, LOOK_S))
            if client.random.random() < CHECKS:
                await client.beside("check", None, check(cluster, None, 0.0, SILENT))
            else:
                await self._look(client, cluster)

        if first:
            await until_stopped(client, step)

    async def conclude(self, client: Client) -> None:
        cluster = self._cluster(client)
        health = await client.beside("check", None, check(cluster, None, WELL_S, SILENT))
        if health.status != HEALTHY or not health.healthy:
            self.seen.problems.append(
                f"everything is whole, and `ebla check` says {health.status}: {'; '.join(health.reasons)}"
            )
        told = await self._look(client, cluster)
        unwell = [f"{node.address} is {node.status}" for node in told.nodes if node.status != HEALTHY]
        if unwell or told.active is None or len(told.nodes) != len(client.stage.journals):
            self.seen.problems.append(f"everything is whole, and of {told.active}'s journal {unwell} are not")

    def judge(self, history: History) -> Verdict:
        problems = self.seen.problems
        if problems:
            return Verdict(False, "; ".join(problems[:3]), (), len(problems))
        return Verdict(True, judged=self.looks) if self.looks else nothing("nobody looked at the journal")

    @staticmethod
    def _cluster(client: Client) -> Cluster:
        """As commands have it."""
        return Cluster(client.db._client, client.stage.servers, client.stage.journals)

    async def _look(self, client: Client, cluster: Cluster) -> journals.JournalReport:
        """What `ebla journal status` shows, but for the hosts' names."""
        survey = await client.beside("status", None, cluster.survey(()))
        self.looks += 1
        self.seen.look_at(survey)
        told = journals.report_of(survey, {})
        for show in (journals.document, journals.summary, journals.rows, journals.remarks):
            show(told)
        failed = [f"{node.address}: {node.error}" for node in told.nodes if node.status == FAILED]
        if failed:
            self.seen.problems.append(f"nothing was damaged, and FAILED is {'; '.join(failed)}")
        return told
