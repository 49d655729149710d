"""Inspections: an operator inspects masters and their journal while they fail, with the code of `ebla check` and `ebla journal
status` (client/operate/checking.py, client/operate/journals.py).

An inspection never ends in an error: its result names the roles that did not answer. Each inspection of the journal is compared
with all before it:

    no number falls        a node's promised epoch, its writer's epoch and its commit only grow, over all its starts; so do the
                           epoch and the commit of the active master
    no node is ahead       no node has a higher commit than the active master, which is asked after it
    segments stay          a finalized segment is the same on every node, and stays the same
    no false alarm         no node is reported as damaged, or as another deployment's

When all faults have ended, `ebla check` reports a healthy deployment, the diagnosis of a tablet advises no force, and every node of
the journal is healthy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebla.actors.journal.messages import JournalNodeStatus, JournalStatus
from ebla.chaos.checkers.verdict import Verdict, passed
from ebla.chaos.history import History
from ebla.chaos.workloads.base import Client, Workload, until_stopped
from ebla.health.verdicts import FAILED, HEALTHY, Survey, Unanswered
from ebla.operate import diagnosis, journals
from ebla.operate.checking import check
from ebla.operate.cluster import Cluster
from ebla.operate.waiting import Progress

INSPECT_S = 0.8  # between two inspections, at most
CHECKS = 0.25  # of the inspections are of the whole deployment
WELL_S = 60.0  # after all faults have ended, until `ebla check` reports a healthy deployment
SILENT = Progress()


@dataclass
class Seen:
    """The journal in all inspections: `nodes` by their uuid, `ends` of finalized segments by their start."""

    nodes: dict[str, dict[str, int]] = field(default_factory=dict)
    writer: tuple[int, int] = (0, 0)
    ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def compare(self, survey: Survey) -> None:
        """Compare the survey with earlier ones. It asked the nodes before it asked the active master."""
        committed = 0
        for address, said in survey.journals.items():
            if isinstance(said, Unanswered):
                continue
            for journal in said.journals:
                self._compare_node(address, said, journal)
                self._compare_segments(address, journal)
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

    def _compare_node(self, address: str, said: JournalNodeStatus, journal: JournalStatus) -> None:
        now = {"promised": journal.promised, "writer": journal.writer, "committed": journal.committed}
        before = self.nodes.get(said.uuid, now)
        back = {name: (before[name], now[name]) for name in now if now[name] < before[name]}
        if back:
            self.problems.append(f"{address} went back: {back}")
        self.nodes[said.uuid] = now

    def _compare_segments(self, address: str, journal: JournalStatus) -> None:
        for state in (segment.state for segment in journal.segments if segment.state.finalized):
            known = self.ends.setdefault(state.start, (state.end, state.digest))
            if known != (state.end, state.digest):
                self.problems.append(
                    f"segment {state.start} ended as {known}, and on {address} as {state.end, state.digest}"
                )


class Inspections(Workload):
    name = "inspections"

    def __init__(self) -> None:
        self.seen = Seen()
        self.problems = self.seen.problems
        self.inspected = 0
        self._operated = False

    async def run(self, client: Client) -> None:
        """One of the clients is the operator; the others do nothing."""
        first, self._operated = not self._operated, True
        cluster = self._cluster(client)

        async def step() -> None:
            await client.clock.sleep(client.random.uniform(0.0, INSPECT_S))
            if client.random.random() < CHECKS:
                await client.beside("check", None, check(cluster, None, 0.0, SILENT))
            else:
                await self._inspect(client, cluster)

        if first:
            await until_stopped(client, step)

    async def conclude(self, client: Client) -> None:
        cluster = self._cluster(client)
        health = await client.beside("check", None, check(cluster, None, WELL_S, SILENT))
        if health.status != HEALTHY or not health.healthy:
            self.seen.problems.append(
                f"all faults have ended, but `ebla check` says {health.status}: {'; '.join(health.reasons)}"
            )
        for tablet in health.tablets[:1]:
            await self._diagnose(client, cluster, tablet.tablet)
        status = await self._inspect(client, cluster)
        unwell = [f"{node.address} is {node.status}" for node in status.nodes if node.status != HEALTHY]
        if unwell or status.active is None or len(status.nodes) != len(client.stage.journals):
            self.seen.problems.append(
                f"all faults have ended, but {status.active}'s journal is not healthy: {unwell}"
            )

    def judge(self, history: History) -> Verdict:
        return passed(self.inspected, "the journal was never inspected")

    @staticmethod
    def _cluster(client: Client) -> Cluster:
        return Cluster(client.db._client, client.stage.servers, client.stage.journals)

    async def _diagnose(self, client: Client, cluster: Cluster, tablet: str) -> None:
        """Make `ebla tablet diagnose`: nothing needs to be forced."""
        found = await client.beside("diagnose", tablet, diagnosis.diagnose(cluster, tablet))
        if found.force:
            self.seen.problems.append(
                f"all faults have ended, but the diagnosis of {tablet} advises force: {found.force}"
            )

    async def _inspect(self, client: Client, cluster: Cluster) -> journals.JournalReport:
        """Make `ebla journal status`, without the hosts' names."""
        survey = await client.beside("status", None, cluster.survey(()))
        self.inspected += 1
        self.seen.compare(survey)
        status = journals.report_of(survey, {})
        for show in (journals.document, journals.summary, journals.rows, journals.remarks):
            show(status)
        failed = [f"{node.address}: {node.error}" for node in status.nodes if node.status == FAILED]
        if failed:
            self.seen.problems.append(f"no fault damaged data, but FAILED is {'; '.join(failed)}")
        return status
