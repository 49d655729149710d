"""Measures the cost of the beacons of PacificA tables to the active master, beside that of heartbeats.

    python -m benchmarks.beacons

In a process of its own, three real masters and journal nodes run in virtual time with a catalog of a thousand tablets on a hundred
servers. The active master then answers the servers' messages, encoded and decoded; the network and its actors are not measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from benchmarks.figures import in_another_process
from benchmarks.takeover import JOURNAL, SERVERS, image, serves, simulated, spread
from ebla.actors import messages as m
from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.master.leadership.group import Master
from ebla.actors.master.options import GroupOptions
from ebla.actors.messages.appointments import Beacon, BeaconReply
from ebla.actors.replication.configuration import PACIFICA, Configuration
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.upkeep.reporter import STANDBY_RESTS
from ebla.actors.world import ERROR, Dispatcher, decode_answer, encode
from ebla.chaos.simulation.loop import run

TABLETS, ROUNDS = 1000, 200
MASTERS = ("master/0", "master/1", "master/2")
OPTIONS = GroupOptions(masters=MASTERS, journal=JOURNAL)


class Cost(msgspec.Struct, frozen=True):
    """Of all servers together, to all masters: calls and bytes per second. `master_ms_per_s`: CPU of the active master."""

    calls_per_s: float
    bytes_per_s: float
    master_ms_per_s: float


class Costs(msgspec.Struct, frozen=True):
    beacons: Cost
    heartbeats: Cost
    servers: int
    tablets: int
    masters: int


def costs() -> Costs:
    """Measure in another process, where nothing else runs."""
    return in_another_process("beacons", Costs)


def _led(table: int, bucket: int) -> Configuration:
    chosen = spread(table, bucket)
    return Configuration(chosen, 7, primary=chosen[0].uuid, min_members=2)


async def measured() -> Costs:
    cluster = await simulated(MASTERS, image(TABLETS, _led, PACIFICA, 2))
    masters = [await cluster.start(address, lambda world: Master(world, OPTIONS)) for address in MASTERS]
    while not (active := [each for each in masters if isinstance(each, Master) and serves(each)]):
        await asyncio.sleep(0.01)
    dispatcher = Dispatcher(active[0], _defect)
    times = TabletServerOptions(masters=MASTERS, host="host-0")
    servers = [m.ServerInstance(f"{number:032x}", 1, f"start-{number}") for number in range(SERVERS)]

    def first(sequence: int) -> list[msgspec.Struct]:
        return [
            m.HeartbeatRequest(
                each,
                m.Registration(f"tablet-server/host-{number}", f"host-{number}", "1"),
                m.TabletReport(sequence, False, ()),
            )
            for number, each in enumerate(servers)
        ]

    def quiet(sequence: int) -> list[msgspec.Struct]:
        """Heartbeats of servers on which nothing has changed."""
        report = m.TabletReport(sequence, True, ())
        space = (m.DiskSpace("", 10**12, 10**11),)
        return [m.HeartbeatRequest(each, None, report, 30, 10, 10**9, 10**8, True, space) for each in servers]

    def beacons(sequence: int) -> list[msgspec.Struct]:
        return [Beacon(each, 1, DetectorLimits().lease_s) for each in servers]

    await _answer(dispatcher, "heartbeat", first(0))
    await _answer(dispatcher, "beacon", beacons(0))
    await asyncio.sleep(1.0)  # the incarnations are recorded, and beacons are acknowledged from now on
    answers = await _answer(dispatcher, "beacon", beacons(0))
    assert not any(decode_answer(data, BeaconReply).refused for data in answers), answers[0]
    return Costs(
        beacons=await _cost(dispatcher, "beacon", beacons, times.beacon_s),
        heartbeats=await _cost(dispatcher, "heartbeat", quiet, times.heartbeat_s, STANDBY_RESTS),
        servers=SERVERS,
        tablets=TABLETS,
        masters=len(MASTERS),
    )


def _defect(method: str, error: BaseException) -> None:
    raise error


async def _answer(dispatcher: Dispatcher, method: str, requests: Sequence[msgspec.Struct]) -> list[bytes]:
    answers = [await dispatcher.answer(method, encode(each)) for each in requests]
    assert all(data[:1] != ERROR for data in answers), answers[0]
    return answers


async def _cost(
    dispatcher: Dispatcher,
    method: str,
    requests: Callable[[int], list[msgspec.Struct]],
    every_s: float,
    rests: int = 1,
) -> Cost:
    """The cost of one such request of each server every `every_s`, and of one every `rests` times as long to each standby, which
    refuses it, for less."""
    rounds = [list(map(encode, requests(sequence))) for sequence in range(1, ROUNDS + 1)]
    answers = await _answer(dispatcher, method, requests(0))
    began = time.process_time()
    for encoded in rounds:
        for data in encoded:
            await dispatcher.answer(method, data)
    seconds = (time.process_time() - began) / ROUNDS
    carried = sum(map(len, rounds[-1])) + sum(map(len, answers))
    masters = 1 + (len(MASTERS) - 1) / rests
    return Cost(len(answers) * masters / every_s, carried * masters / every_s, 1000 * seconds / every_s)


if __name__ == "__main__":
    print(msgspec.json.encode(run(measured(), 0)).decode())
