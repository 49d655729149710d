"""PacificA groups under constant writes, and with each single message lost, late or doubled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ebla.actors.errors import NotLeader, Unavailable
from ebla.actors.replication.configuration import NON_VOTER, Peer
from tests.pacifica.group import Group
from tests.sweeps import FACTOR

D = Peer("d", "host-d", NON_VOTER, promote=True)


def write_always(group: Group, every_s: float) -> None:
    """Propose an entry at each primary again and again."""
    for node in group.leaders():
        try:
            node.propose(b"x")
        except (NotLeader, Unavailable):
            continue
        node.absorb()
    group.after(every_s, "client", lambda: write_always(group, every_s))


def request(group: Group, peers: tuple[Peer, ...]) -> None:
    node = group.leader()
    node.running().request_members(node.clock(), peers)
    node.absorb()


def votes(group: Group, name: str) -> bool:
    return name in [peer.uuid for peer in group.master.stored.voters()]


def longest_pause(group: Group, seconds: float) -> float:
    """Let time pass, and return the longest time without a newly committed entry."""
    longest, since, known = 0.0, group.now, len(group.oracle.committed)
    end = group.now + seconds
    while group.now < end:
        group.run(0.01)
        if len(group.oracle.committed) > known:
            since, known = group.now, len(group.oracle.committed)
        longest = max(longest, group.now - since)
    return longest


def test_a_server_sends_no_beacon_while_its_oldest_write_has_waited_for_half_a_lease() -> None:
    """Also if its disk has written something else meanwhile, as in production (tests/tablet/test_pacifica_leases.py)."""
    group = Group("abc")
    group.run(1.5)  # beacons leave at each full second
    slow, lease_s = group.nodes["b"], group.times.lease_s
    slow.disk_s = 1.5
    for _ in range(2):
        group.leader().propose(b"x")
        group.leader().absorb()
        group.run(0.1)
    group.run(2.6)
    assert slow.lease.until == 3.0 + lease_s, "at 4.0 the second write has waited for 2.4 s"
    group.run(0.8)
    assert slow.lease.until == 5.0 + lease_s


def test_a_learner_gets_its_vote_under_constant_writes() -> None:
    group = Group("abc", spares="d")
    group.network.latency_s = 0.03
    group.nodes["d"].disk_s = 0.02
    group.run(1.0)
    write_always(group, 0.004)
    group.run(0.5)
    request(group, (*group.first.peers, D))
    pause_s = longest_pause(group, 3.0)
    assert votes(group, "d")
    assert pause_s < 0.5


def test_a_learner_that_dies_just_before_its_vote_stops_writes_for_little_longer_than_silent_s() -> None:
    group = Group("abc", spares="d")
    group.nodes["d"].disk_s = 0.02
    group.run(1.0)
    write_always(group, 0.004)
    request(group, (*group.first.peers, D))

    def joining() -> bool:
        core = group.leader().running()
        return core._lead is not None and bool(core._lead.joining) and core.asked is None

    assert group.run(3.0, until=joining)
    group.nodes["d"].crash()
    assert longest_pause(group, 3.0) < group.limits.silent_s + 0.3
    assert not votes(group, "d")


@pytest.mark.parametrize("cut", [False, True], ids=["dead", "cut off"])
def test_the_only_secondary_loses_its_vote_although_events_come_all_the_time(cut: bool) -> None:
    group = Group("ab", min_members=1)
    group.run(1.0)
    write_always(group, 0.001)
    if cut:
        group.isolate("b")
    else:
        group.nodes["b"].crash()
    assert longest_pause(group, 4.0) < 2 * group.limits.silent_s + 0.3
    assert not votes(group, "b")


def test_a_secondary_that_returns_gets_its_vote_back_without_a_pause_of_writes() -> None:
    group = Group("abc")
    group.run(1.0)
    write_always(group, 0.005)
    group.nodes["b"].crash()
    assert group.run(3.0, until=lambda: not votes(group, "b"))
    group.nodes["b"].start()
    assert longest_pause(group, 5.0) < 0.3
    assert votes(group, "b")


def history(group: Group) -> None:
    """A member is added, the primary hands over, another dies and returns, and one is removed; with writes all along."""
    group.run(0.5)
    write_always(group, 0.1)
    ask(lambda: request(group, (*group.leader().running().configuration.peers, D)))
    group.run(1.0)
    node = group.nodes["a"]
    ask(lambda: node.running().step_down(node.clock(), "b"))
    node.absorb()
    group.run(1.0)
    group.nodes["c"].crash()
    group.run(1.5)
    group.nodes["c"].start()
    group.run(1.0)
    ask(
        lambda: request(
            group, tuple(p for p in group.leader().running().configuration.peers if p.uuid != "d")
        )
    )
    group.run(0.5)


def ask(verb: Callable[[], object]) -> None:
    """Carry out a verb that the fault may make impossible."""
    try:
        verb()
    except (AssertionError, NotLeader, Unavailable):
        return


FAULTS: dict[str, Callable[[float], list[float]]] = {
    "lost": lambda usual_s: [],
    "late": lambda usual_s: [3.0],
    "doubled": lambda usual_s: [usual_s, 1.3],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_any_single_message_breaks_no_promise(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    number, total = 0, 1
    while number < total:
        group = Group("abc", spares="d")
        total = with_fault(group, number, FAULTS[fault], monkeypatch)
        assert len(group.oracle.committed) > 20
        number += 1 if FACTOR > 1 else 23
    assert total > 300


def with_fault(
    group: Group, number: int, fault: Callable[[float], list[float]], monkeypatch: pytest.MonkeyPatch
) -> int:
    """Run the history with a fault of message `number`; at the end all is well. Return how many messages there were."""
    usual, sent = group.network.delays, 0

    def delays(source: str, target: str) -> list[float]:
        nonlocal sent
        sent += 1
        found = usual(source, target)
        return fault(found[0]) if sent == number + 1 and found else found

    monkeypatch.setattr(group.network, "delays", delays)
    history(group)
    messages = sent
    group.run(8.0)
    core = group.leader().running()
    voters = [peer.uuid for peer in group.master.stored.voters()]
    assert set("abc") <= set(voters), (number, voters, core.story())
    assert len(group.oracle.committed) >= core.last_index - 1, (number, core.story())
    assert len(group.leaders()) == 1
    group.oracle.logs_match()
    return messages
