"""A stage whose journal of one node grows to three nodes."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from ebla.actors.errors import NetworkError, NotActive, NotRunning, Unavailable
from ebla.actors.journal import messages as jm
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.options import JournalNodeOptions
from ebla.actors.master.messages import GrowJournalReply, GrowJournalRequest
from ebla.actors.master.options import MasterOptions
from ebla.actors.messages import Empty
from ebla.chaos.simulation.masters import JOURNAL
from ebla.chaos.simulation.medium import DurableState
from ebla.health.masters import judge_journals
from ebla.health.verdicts import Survey
from tests.master.stage import MASTER, Stage, play

NEW = ("journal/1", "journal/2")

NODES = (MASTER, *NEW)

GROWN = replace(JOURNAL, version=2)

HELD_S = 1.5


def make_node(world):
    return JournalNode(world, JournalNodeOptions(sync_s=2.0, rpc_timeout_s=3.0))


async def opened(stage: Stage) -> None:
    """With tables, and with a checkpoint whose edits are purged from the journal."""
    await stage.open("a", "b", "c")
    for number in range(12):
        await stage.create(f"table {number}", replicas=1)
    await stage.running("table 11")
    await stage.master.scribe._save(stage.master.log.last_txid)
    await stage.until(lambda: only_node(stage).view.state.purged > 0)
    for node in NEW:
        await stage.cluster.start(node, make_node)


def only_node(stage: Stage):
    return stage.cluster.role(MASTER).node.journals[JOURNAL.name]


def node(stage: Stage, address: str):
    return stage.cluster.role(address).journals[JOURNAL.name]


async def grow(stage: Stage, timeout_s: float = 20.0) -> None:
    reply = await stage.ask("grow_journal", GrowJournalRequest(NODES), GrowJournalReply, timeout_s)
    assert reply.nodes == NODES


async def grow_at_last(stage: Stage) -> None:
    for _ in range(200):
        try:
            return await grow(stage)
        except (NetworkError, NotActive, NotRunning, Unavailable):
            await asyncio.sleep(0.1)
    raise AssertionError("the journal did not grow")


async def create(stage: Stage, name: str) -> None:
    await stage.until(
        lambda: stage.cluster.role(MASTER).active_term is not None and all(map(stage.alive, "abc"))
    )
    await stage.persist(lambda: stage.create(name, replicas=1))
    await stage.running(name)


async def serving(stage: Stage) -> float:
    """How long it takes."""
    began = stage.cluster.loop.time()
    role = stage.cluster.role(MASTER)
    await stage.until(lambda: role.active_term is not None and role.active_term.serves())
    return stage.cluster.loop.time() - began


async def counting(stage: Stage) -> None:
    await stage.until(lambda: not any(node(stage, each).view.state.token for each in NEW))


OPTIONS = MasterOptions(bg_s=0.1, unresponsive_s=2.0, checkpoint_edits=8)


def run(scenario, seed: int = 0) -> None:
    play(scenario, seed, OPTIONS)


async def empty(stage: Stage, *addresses: str) -> None:
    """Start these journal nodes over empty directories."""
    for address in addresses:
        if stage.cluster.alive(address):
            stage.cluster.crash(address)
        stage.cluster.put_disk(address, DurableState())
        await stage.cluster.start(address, make_node)


def ask_to_join(stage: Stage, address: str, nodes: tuple[str, ...] = NODES):
    return stage.client.network.call(address, "join", jm.RejoinRequest(GROWN, nodes), jm.Joining, 1.0)


async def judged(stage: Stage):
    """The health of the journal nodes, as `ebla check` judges it."""
    found = {
        each: await stage.client.network.call(each, "journal_status", Empty(), jm.JournalNodeStatus, 1.0)
        for each in NODES
        if stage.cluster.alive(each)
    }
    return {each.address: each for each in judge_journals(Survey({}, (), (), {}, journals=found))}
