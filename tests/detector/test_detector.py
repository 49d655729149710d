"""The failure detector in every history of a small deployment, and its rules one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebla.actors.detector import detector as d
from ebla.actors.detector.detector import NEW, RESTARTED, SILENT, Detector, End
from ebla.actors.detector.lease import NEVER, Lease
from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.incarnations import RAISED_BY
from ebla.actors.messages import ServerInstance
from ebla.storage.errors import InvalidArgument
from tests.detector.explorer import LEASE_S, Broken, Deployment, Rules, explore
from tests.detector.troubles import Troubled
from tests.sweeps import FACTOR

LIMITS = DetectorLimits()
FIRST, SECOND = ServerInstance("a", 1, "first"), ServerInstance("a", 2, "second")


def watching(known: ServerInstance | None = FIRST, allowed: str = "ab") -> Detector:
    return Detector(LIMITS, 0.0, [("a", known)], lambda uuid: uuid in allowed)


# -- every history -------------------------------------------------------------------------------------------


COARSE = [
    Rules(tick_s=25, slow_tick_s=20),
    Rules(slow_tick_s=8, messages_max=1),
    Rules(slow_tick_s=8, servers=3, troubles=2),
]
FINER = [
    Rules(slow_tick_s=8),
    Rules(),
    Rules(slow_tick_s=12),
    Rules(tick_s=5, slow_tick_s=4),
    Rules(slow_tick_s=8, servers=2, troubles=3),
    Rules(servers=3, troubles=2),
]


def search(rules: Rules) -> int:
    return explore(Troubled(rules) if rules.troubles else Deployment(rules))


@pytest.mark.parametrize("rules", [*COARSE, *(FINER if FACTOR > 1 else [])])
def test_no_server_serves_what_another_was_given(rules: Rules) -> None:
    """With clocks that differ by up to grace_s / lease_s."""
    assert search(rules) > 5_000


class CountsFromTheAnswer(Lease):
    def acknowledged(self, now: float, number: int, sent_at: float) -> None:
        super().acknowledged(now, number, now)


class ContinuesALostLease(Lease):
    def acknowledged(self, now: float, number: int, sent_at: float) -> None:
        if number == self.number:
            self._begun, self.until = True, max(self.until, sent_at + LEASE_S)


class FollowsOrdersOfAnyLease(Lease):
    def holds(self, now: float, number: int) -> bool:
        return super().holds(now, self.number)


class NamesOneLeaseForEver(Lease):
    def beacon(self, now: float, *, log_stalled: bool) -> int | None:
        self.number = 1
        self.until = max(self.until, now + LEASE_S) if not self._begun else self.until
        return self.number


class GivesOrdersToTheEnding(Detector):
    def beacon(self, now: float, shown: ServerInstance, lease: int) -> str:
        answer = super().beacon(now, shown, lease)
        if answer != d.DECIDED:
            return answer
        self._servers[shown.uuid].lease = lease
        return d.ACKNOWLEDGED

    def lease(self, uuid: str) -> d.Stamp | None:
        server = self._servers.get(uuid)
        if server is None or server.state == d.ENDED or not server.lease or server.instance is None:
            return None
        return d.Stamp(server.instance.start, server.lease)


class ForgetsIncarnations(Detector):
    """It takes the first incarnation that it hears of for the one that is recorded, and acknowledges it."""

    def __init__(self, limits, now, servers) -> None:  # type: ignore[no-untyped-def]
        super().__init__(limits, now, [(uuid, None) for uuid, _ in servers] if now else servers)

    def _meet(self, server, shown, now: float) -> bool:  # type: ignore[no-untyped-def]
        if server.instance is None:
            server.instance = shown
        return super()._meet(server, shown, now)


class GivesNoGraceAfterATakeover(Detector):
    def __init__(self, limits, now, servers) -> None:  # type: ignore[no-untyped-def]
        super().__init__(limits, now - limits.grace_s if now else now, servers)


class TakesAnEndForThatOfThePresentProcess(Detector):
    def process_ended(self, now: float, process: ServerInstance) -> bool:
        present = self._servers[process.uuid].instance
        return super().process_ended(now, present or process)


class EndsAllTogether(Detector):
    def decide(self, now: float) -> list[End]:
        if any(end.reason == SILENT for end in super().decide(now)):
            for server in self._servers.values():
                if server.state == d.ALIVE:
                    server.state, server.end = d.ENDING, SILENT
        return super().decide(now)


class ForgetsTheOthersAtAnEnd(Detector):
    """It forgets the leases of all other servers, until their next beacons."""

    def ended(self, end: End) -> None:
        super().ended(end)
        for uuid, server in self._servers.items():
            server.lease = server.lease if uuid == end.uuid else 0


class EndsOneAtATakeover(Detector):
    """The last server, which serves nothing."""

    def __init__(self, limits, now, servers) -> None:  # type: ignore[no-untyped-def]
        super().__init__(limits, now, servers)
        if now:
            self._servers[max(self._servers)].heard_at = now - limits.grace_s


SEVERAL = Rules(slow_tick_s=8, servers=2, troubles=2)
MORE_MISTAKES = [
    Rules(lease=CountsFromTheAnswer),
    Rules(lease=FollowsOrdersOfAnyLease),
    Rules(lease=NamesOneLeaseForEver),
    Rules(detector=GivesOrdersToTheEnding),
    Rules(detector=GivesNoGraceAfterATakeover),
    Rules(grace_s=LEASE_S, slow_tick_s=8),
    Rules(detector=ForgetsIncarnations),
    Rules(detector=TakesAnEndForThatOfThePresentProcess),
    Rules(lease=ContinuesALostLease, tick_s=5, slow_tick_s=5),
]


@pytest.mark.parametrize(
    "rules",
    [
        Rules(slow_tick_s=6),
        replace(SEVERAL, lease=CountsFromTheAnswer),
        replace(SEVERAL, lease=FollowsOrdersOfAnyLease),
        replace(SEVERAL, lease=NamesOneLeaseForEver),
        replace(SEVERAL, detector=GivesOrdersToTheEnding),
        replace(SEVERAL, detector=GivesNoGraceAfterATakeover),
        replace(SEVERAL, detector=TakesAnEndForThatOfThePresentProcess),
        replace(SEVERAL, grace_s=LEASE_S),
        *(MORE_MISTAKES if FACTOR > 1 else []),
    ],
    ids=lambda rules: (
        f"{rules.lease.__name__}-{rules.detector.__name__}-{rules.grace_s}-{rules.slow_tick_s}-{rules.servers}"
    ),
)
def test_a_known_mistake_is_found(rules: Rules) -> None:
    with pytest.raises(Broken, match=r"serves|which no trouble has hit"):
        search(rules)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (EndsAllTogether, "the master ends server ., which no trouble has hit"),
        (ForgetsTheOthersAtAnEnd, "the end of . touches another server"),
        (EndsOneAtATakeover, "the master ends server 2, which no trouble has hit"),
    ],
)
def test_an_end_that_concerns_another_server_is_found(wrong: type[Detector], problem: str) -> None:
    with pytest.raises(Broken, match=problem):
        search(replace(SEVERAL, detector=wrong, servers=3, troubles=1))


# -- a server's leases ---------------------------------------------------------------------------------------


def test_a_lease_counts_from_the_sending_of_the_acknowledged_beacon() -> None:
    lease = Lease(LIMITS)
    assert lease.beacon(1.0, log_stalled=False) == 1
    assert not lease.holds(1.0, 1)
    lease.acknowledged(3.0, 1, sent_at=1.0)
    assert lease.holds(1.0 + LIMITS.lease_s - 0.01, 1)
    assert not lease.holds(1.0 + LIMITS.lease_s, 1)


def test_a_late_acknowledgement_does_not_shorten_a_lease() -> None:
    lease = Lease(LIMITS)
    assert lease.beacon(1.0, log_stalled=False) == lease.beacon(2.0, log_stalled=False) == 1
    lease.acknowledged(2.5, 1, sent_at=2.0)
    lease.acknowledged(2.6, 1, sent_at=1.0)
    assert lease.until == 2.0 + LIMITS.lease_s


def test_a_lease_that_is_over_is_followed_by_another_number() -> None:
    lease = Lease(LIMITS)
    lease.beacon(0.0, log_stalled=False)
    lease.acknowledged(0.1, 1, sent_at=0.0)
    lease.acknowledged(4.5, 1, sent_at=1.0)
    assert not lease.holds(4.6, 1), "an acknowledgement does not continue what is over"
    assert lease.beacon(5.0, log_stalled=False) == 2
    lease.acknowledged(5.05, 1, sent_at=1.0)
    assert not lease.holds(5.05, 2), "an answer about the lease before does not begin it"
    lease.acknowledged(5.1, 2, sent_at=5.0)
    assert lease.holds(6.0, 2)
    assert not lease.holds(6.0, 1)


def test_a_server_with_a_stalled_log_sends_no_beacon() -> None:
    lease = Lease(LIMITS)
    assert lease.beacon(0.0, log_stalled=True) is None
    assert (lease.number, lease.until) == (0, NEVER)


# -- the master's decisions ----------------------------------------------------------------------------------


def test_a_silent_server_ends_once_and_returns_with_its_next_beacon() -> None:
    master = watching()
    assert master.beacon(1.0, FIRST, 7) == d.ACKNOWLEDGED
    assert master.lease("a") == ("first", 7)
    assert master.next_wake(1.0) == 1.0 + LIMITS.grace_s
    assert master.decide(5.9) == []
    assert master.decide(6.0) == master.decide(6.1) == [End("a", SILENT, FIRST)]
    assert master.next_wake(6.1) == 6.1
    assert master.beacon(6.2, FIRST, 8) == d.DECIDED
    assert master.lease("a") is None
    master.ended(End("a", SILENT, FIRST))
    assert master.decide(60.0) == []
    assert master.next_wake(60.0) == float("inf")
    assert master.beacon(61.0, FIRST, 8) == d.ACKNOWLEDGED
    assert master.lease("a") == ("first", 8)


def test_a_later_incarnation_ends_the_former_one_at_once() -> None:
    master = watching()
    assert master.beacon(0.5, SECOND, 1) == d.DECIDED
    assert master.decide(0.5) == [End("a", RESTARTED, SECOND, 1)]
    master.ended(End("a", RESTARTED, SECOND))
    assert master.beacon(0.6, SECOND, 1) == d.ACKNOWLEDGED
    assert master.beacon(0.7, FIRST, 9) == d.EARLIER
    assert master.lease("a") == ("second", 1)


def test_a_late_beacon_of_a_former_lease_does_not_bring_it_back() -> None:
    master = watching()
    master.beacon(1.0, FIRST, 3)
    master.beacon(1.1, FIRST, 2)
    assert master.lease("a") == ("first", 3)


def test_another_process_of_the_same_incarnation_is_not_acknowledged() -> None:
    """A copy of a server's directory gives such a process."""
    master = watching()
    assert master.beacon(0.5, ServerInstance("a", FIRST.seqno, "copy"), 1) == d.EARLIER
    assert master.decide(0.5) == []


def test_a_server_gets_no_order_before_its_first_beacon_nor_after_its_end() -> None:
    master = watching()
    assert master.lease("a") is None and not master.has_ended("a")
    master.beacon(0.5, FIRST, 1)
    master.beacon(0.6, SECOND, 1)
    assert master.lease("a") is None and not master.has_ended("a"), "its end is not durable yet"
    for end in master.decide(0.6):
        master.ended(end)
    assert master.lease("a") is None and master.has_ended("a")


def test_an_incarnation_that_comes_while_another_is_recorded_is_recorded_next() -> None:
    master = watching()
    assert master.beacon(0.5, SECOND, 1) == d.DECIDED
    third = ServerInstance("a", 3, "third")
    assert master.beacon(0.6, third, 1) == d.DECIDED
    master.ended(End("a", RESTARTED, SECOND))
    assert master.decide(0.7) == [End("a", RESTARTED, third, 2)]
    assert master.beacon(0.8, third, 1) == d.DECIDED
    master.ended(End("a", RESTARTED, third))
    assert not master.lease("a") and master.has_ended("a")
    assert master.beacon(0.9, third, 1) == d.ACKNOWLEDGED


def test_a_new_server_is_acknowledged_once_it_is_recorded_and_a_suspended_one_never() -> None:
    master = watching(allowed="ab")
    new = ServerInstance("b", 1, "x")
    assert master.beacon(0.0, new, 1) == d.DECIDED
    assert master.decide(0.0) == [End("b", NEW, new)]
    master.ended(End("b", NEW, new))
    assert not master.has_ended("b")
    assert master.beacon(0.0, new, 1) == d.ACKNOWLEDGED
    assert master.beacon(0.0, ServerInstance("c", 1, "x"), 1) == d.NOT_ALLOWED
    assert master.lease("c") is None
    master.allowed = lambda uuid: uuid == "b"
    assert master.beacon(1.0, FIRST, 1) == d.NOT_ALLOWED
    assert [end.uuid for end in master.decide(LIMITS.grace_s)] == ["a", "b"]


def test_a_server_that_left_its_last_tablet_has_not_ended_and_is_watched_again_with_the_next_one() -> None:
    master = watching()
    master.beacon(0.0, FIRST, 1)
    (end,) = master.decide(6.0)
    master.ended(end)
    master.leave("a")
    assert not master.has_ended("a") and master.decide(60.0) == [] and master.lease("a") is None
    assert master.beacon(60.0, ServerInstance("a", FIRST.seqno, "copy"), 1) == d.EARLIER
    master.watch(60.0, "a", FIRST)
    assert not master.has_ended("a") and master.lease("a") is None, "its former lease is over"
    assert master.beacon(60.5, FIRST, 2) == d.ACKNOWLEDGED and master.lease("a") == ("first", 2)
    assert [end.reason for end in master.decide(70.0)] == [SILENT]


def test_a_server_that_restarts_too_often_gets_no_lease_until_it_is_stable() -> None:
    master, now = watching(), 0.0
    for start in range(2, LIMITS.restarts_max + 2):
        now += 1.0
        shown = ServerInstance("a", start, str(start))
        master.beacon(now, shown, 1)
        for end in master.decide(now):
            master.ended(end)
    assert master.beacon(now, shown, 1) == master.beacon(now + LIMITS.stable_s - 0.1, shown, 1) == d.UNSTABLE
    assert master.beacon(now + LIMITS.stable_s, shown, 1) == d.ACKNOWLEDGED
    (silent,) = master.decide(now + 2 * LIMITS.stable_s)
    assert silent.restarts == 0, "the catalog gets the number of a row that is not over"
    master.ended(silent)
    later = ServerInstance("a", 99, "later")
    assert master.beacon(now + 3 * LIMITS.stable_s, later, 1) == d.DECIDED
    master.ended(End("a", RESTARTED, later))
    assert master.beacon(now + 3 * LIMITS.stable_s, later, 1) == d.ACKNOWLEDGED


def test_a_new_master_goes_on_counting_restarts_unless_the_server_has_run_for_long() -> None:
    def begun(shown: ServerInstance) -> str:
        """The answer of a master that takes over in the middle of a row of restarts, once it has recorded `shown`."""
        master = Detector(LIMITS, 0.0, [("a", FIRST)], restarts={"a": LIMITS.restarts_max})
        master.beacon(1.0, shown, 1)
        for end in master.decide(1.0):
            master.ended(end)
        return master.beacon(1.1, shown, 1)

    for raised in (0, RAISED_BY):  # a number is raised soon after a start, and then each minute
        assert begun(ServerInstance("a", FIRST.seqno + raised + 1, "later")) == d.UNSTABLE
    assert begun(ServerInstance("a", FIRST.seqno + 2 * RAISED_BY + 1, "later")) == d.ACKNOWLEDGED
    same = ServerInstance("a", FIRST.seqno + 2 * RAISED_BY, FIRST.start)
    master = Detector(LIMITS, 0.0, [("a", FIRST)], restarts={"a": LIMITS.restarts_max})
    assert master.beacon(1.0, same, 1) == d.ACKNOWLEDGED, "it has run for a minute since that was recorded"


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ({"beacon_s": 0.0}, "beacon_s must be greater than zero"),
        ({"lease_s": 2.9}, "lease_s must be at least 3 times beacon_s"),
        ({"grace_s": 4.9}, "grace_s must be at least 1.25 times lease_s"),
    ],
)
def test_times_that_contradict_each_other_are_refused(wrong: dict[str, float], remedy: str) -> None:
    with pytest.raises(InvalidArgument, match=remedy):
        DetectorLimits(**wrong).validate()
    LIMITS.validate()


# -- for operators -------------------------------------------------------------------------------------------


def test_operators_see_the_state_of_a_lease_and_the_age_of_its_last_acknowledged_beacon() -> None:
    detector = watching()
    assert detector.shown(1.0, "a") == (d.UNKNOWN, 0, None, 4.0), "this master presumes that it is alive"
    assert detector.shown(1.0, "b") is None
    assert detector.beacon(2.0, FIRST, 3) == d.ACKNOWLEDGED
    assert detector.shown(2.5, "a") == (d.ALIVE, 3, 0.5, 4.5)
    (end,) = detector.decide(2.0 + LIMITS.grace_s)
    assert detector.shown(8.0, "a") == (d.ENDING, 3, 6.0, 0.0)
    assert detector.beacon(8.0, FIRST, 3) == d.DECIDED
    assert detector.shown(8.0, "a") == (d.ENDING, 3, 6.0, 0.0), "a refused beacon changes nothing"
    detector.ended(end)
    assert detector.shown(9.0, "a") == (d.ENDED, 3, 7.0, 0.0)
    assert detector.beacon(10.0, FIRST, 4) == d.ACKNOWLEDGED
    assert detector.shown(10.0, "a") == (d.ALIVE, 4, 0.0, 5.0)
