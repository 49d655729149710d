"""One process of clients: it connects to the deployment as any application does, runs workloads, and notes and judges their
histories. chaos/ray/groups.py starts several of them.

    python -m ebla.chaos.ray.clients        not for people: it is driven by lines on its standard input

    in     Order, then the verbs `run`, `stop`, `conclude`, and `adopt N` for a group that was killed
    out    a Reply for each: prepared, running, answered, concluded, adopted; `failed` ends it at any moment

Every process has tables of its own (`registers-1`, ...), because the clients of a workload share state in its object. All
processes share one more table (chaos/ray/shared.py). Histories are written line by line as they grow, and so survive a SIGKILL of
this process; their times are of CLOCK_MONOTONIC, which is the same for all processes of a machine. The process ends when its
standard input does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import TextIOWrapper
from pathlib import Path
from random import Random
from typing import Any

import msgspec

import ebla
from ebla import aio
from ebla.actors import deadlines
from ebla.actors.deadlines import timeout
from ebla.actors.ray_world import RayNetwork
from ebla.chaos.export import read_json_lines, to_json_lines
from ebla.chaos.history import Event, History
from ebla.chaos.ray import shared
from ebla.chaos.ray.faults.network import sample
from ebla.chaos.ray.logs import SharedLog
from ebla.chaos.ray.orders import ORDER_BYTES_MAX, Judged, Order, Reply
from ebla.chaos.ray.pulse import PERIOD_S, Pulse
from ebla.chaos.ray.scenarios import scenario
from ebla.chaos.workloads.base import PAUSE_S, Client, NoAnswer, Stage, Workload, judged
from ebla.deployment import make_client, namespace_of
from ebla.placement.connection import connect_ray, disconnect_ray
from ebla.storage.errors import EblaError
from ebla.transport.client import DeploymentClient


class Recorded(History):
    """A history that is also written to a file, line by line."""

    def __init__(self, path: Path) -> None:
        """Continue the history of a killed process; half a line at its end is dropped."""
        super().__init__()
        self.path = path
        if path.exists():
            whole, _, _ = path.read_text().rpartition("\n")
            found = read_json_lines(whole)
            self.events, self.processes = found.events, found.processes
            path.write_text(whole + "\n" if whole else "")
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (open as long as the process lives)

    def note(self, *arguments: Any, **named: Any) -> Event:
        event = super().note(*arguments, **named)
        self._file.write(to_json_lines(History([event])).encode())
        return event


class Clients:
    def __init__(self, order: Order) -> None:
        self.order = order
        asked = scenario(order.scenario)
        self.stage = Stage(
            replicas=asked.replicas,
            replication=asked.replication_of(order.group),
            pause_s=PAUSE_S * order.pauses,
        )
        self.histories: dict[str, Recorded] = {}
        self.workloads = self._make(order.group)
        if order.group == 1:
            self.workloads.append(self._recorded(Pulse(period_s=PERIOD_S * order.pauses)))
        name = f"{shared.NAME}-{order.group}"
        self._shared = shared.SharedRegisters(
            order.group, self._history(name), self._now_s, self.stage.pause_s
        )
        self._threads = ThreadPoolExecutor(order.clients + 1, "shared")
        self._databases: list[ebla.Database] = []
        self._sessions: list[DeploymentClient] = []
        self._tasks: list[asyncio.Task[None]] = []

    def _make(self, group: int) -> list[Workload]:
        made = list(scenario(self.order.scenario).workloads())
        for workload in made:
            workload.name = f"{workload.name}-{group}"
        return [self._recorded(workload) for workload in made]

    def _recorded(self, workload: Workload) -> Workload:
        self.histories[workload.name] = self._history(workload.name)
        return workload

    def _history(self, name: str) -> Recorded:
        return Recorded(Path(self.order.results) / f"{name}.jsonl")

    # -- the verbs, in their order

    async def prepare(self) -> Reply:
        for workload in self.workloads:
            await workload.prepare(self._client(workload, self._session(), 0))
        if self.order.group == 1:
            await self._in_thread(lambda: shared.prepare(self._database(), self.stage.replication))
        network = RayNetwork(namespace_of(self.order.deployment))
        return Reply(
            "prepared", calls=tuple(await sample(network, self.order.sample) if self.order.sample else ())
        )

    async def run(self) -> Reply:
        for number in range(1, self.order.clients + 1):
            session = self._session()
            for workload in self.workloads:
                if isinstance(workload, Pulse) and number > 1:
                    continue
                client = self._client(workload, session, number)
                name = f"{workload.name} client {number}"
                self._tasks.append(asyncio.get_running_loop().create_task(workload.run(client), name=name))
            self._tasks.append(self._share(number))
        return Reply("running")

    def _share(self, number: int) -> asyncio.Task[None]:
        """Use the shared table in a thread of its own, as users of the synchronous client do."""
        name = f"{shared.NAME} client {self.order.group}.{number}"
        chance = Random(f"{self.order.seed}:{name}")
        work = self._in_thread(lambda: self._shared.run(self._database(), chance))
        return asyncio.get_running_loop().create_task(work, name=name)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def stop(self) -> Reply:
        """Stop all clients; every operation under way must end."""
        self.stage.stopping = True
        self._shared.stopping.set()
        _, pending = await asyncio.wait(self._tasks, timeout=self.order.answer_s_max)
        problems = [f"{task.get_name()} was not answered" for task in self._tasks if task in pending]
        for task in self._tasks:
            if task not in pending and (error := task.exception()) is not None:
                trace = "".join(traceback.format_exception(error))
                print(f"{task.get_name()}:\n{trace}", file=sys.stderr, flush=True)
                problems.append(f"{task.get_name()} ended with {type(error).__name__}: {error}")
        return Reply("answered", tuple(problems))

    async def conclude(self) -> Reply:
        reply = await self._concluded("concluded", self.workloads)
        try:
            await self._in_thread(lambda: self._shared.conclude(self._database()))
        except EblaError as error:
            problem = f"{shared.NAME}: the last reads were not answered: {error!r}"
            return msgspec.structs.replace(reply, problems=(*reply.problems, problem))
        return reply

    async def adopt(self, group: int) -> Reply:
        """Make the last reads and verdicts for a group whose process was killed. The last operations of its clients have no end in
        its histories."""
        return await self._concluded("adopted", self._make(group))

    async def _concluded(self, what: str, workloads: Sequence[Workload]) -> Reply:
        problems, verdicts = [], []
        until_s = self._now_s() + self.order.answer_s_max
        for workload in workloads:
            history = self.histories[workload.name]
            try:
                async with timeout(max(1.0, until_s - self._now_s())):
                    await workload.conclude(self._client(workload, self._session(), 0))
            except (NoAnswer, EblaError, TimeoutError) as error:
                why = error.__cause__ or error
                problems.append(f"{workload.name}: the last reads were not answered: {why!r}")
            if isinstance(workload, SharedLog):
                continue  # the run judges the histories of all processes as one
            found = await asyncio.to_thread(judged, workload, history, excused=self.order.excused)
            path = str(history.path)
            verdicts.append(
                Judged(workload.name, path, found.valid, found.problem, found.events, found.judged)
            )
        return Reply(what, tuple(problems), tuple(verdicts))

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        for database in self._databases:
            database.close()
        self._threads.shutdown(cancel_futures=True)

    def _database(self) -> ebla.Database:
        database = ebla.connect(self.order.deployment)
        self._databases.append(database)
        return database

    def _session(self) -> DeploymentClient:
        session = make_client(self.order.deployment)
        self._sessions.append(session)
        return session

    def _client(self, workload: Workload, session: DeploymentClient, number: int) -> Client:
        chance = Random(f"{self.order.seed}:{workload.name}:{number}")
        world = session.world
        history = self.histories[workload.name]
        return Client(
            aio.Database(session), world.clock, world.network, chance, history, self._now_s, self.stage
        )

    def _now_s(self) -> float:
        return time.monotonic() - self.order.epoch_s


async def _serve(lines: asyncio.StreamReader, answers: TextIOWrapper) -> None:
    def send(reply: Reply) -> None:
        answers.write(msgspec.json.encode(reply).decode() + "\n")
        answers.flush()

    order = msgspec.json.decode(await lines.readline(), type=Order)
    connect_ray(order.address, directory=Path(order.cluster))
    clients = Clients(order)
    try:
        send(await clients.prepare())
        verbs = {"run": clients.run, "stop": clients.stop, "conclude": clients.conclude}
        while words := (await lines.readline()).decode().split():
            verb, *group = words
            send(await (clients.adopt(int(group[0])) if verb == "adopt" else verbs[verb]()))
        clients.close()
    except Exception as error:
        send(Reply("failed", (f"{type(error).__name__}: {error}",)))
        raise


async def _main(answers: TextIOWrapper) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=ORDER_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    serving = loop.create_task(_serve(lines, answers))
    while not serving.done():  # end with the standard input at any moment: the parent process is gone
        await asyncio.wait([serving], timeout=0.5)
        if lines.at_eof() and not serving.done():
            os._exit(1)
    await serving


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray's output must not mix with the answers
    deadlines.run(_main(answers))
    disconnect_ray()


if __name__ == "__main__":
    main()
