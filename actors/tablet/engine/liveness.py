"""The liveness of other servers, on which quiescent groups rely: see quiescence.py.

A server sends a liveness message to each server that has quiescent followers of its leaders, twice in a lease, however many they
are, and sooner if the last one has no answer or there is news. For a follower it replaces its leader's heartbeat, and its answer replaces
the follower's. Both messages name the tablets for which they do not count, because the replica there is awake, or has ended, and
repeat each name until the other server has taken it. So an answer never counts for a follower that watches for itself, and no follower
trusts a leader that has ceased to lead, whatever is lost, doubled or late.

Followers wake when their leader's server is silent for an election timeout, in waves: the next ones wake when those before have
elected, so a server that is only late ends the waves with its next message. If a server's process has ended for certain, they do not
wait for its silence; but then only those begin that elect first. A Raft leader stays quiescent while a majority answers,
and ceases to rely on a server that is silent or starting. When that server answers again, and has loaded its replicas, its groups
wake in waves, and bring it up to date. What still relies on a server when another incarnation of it is met wakes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from math import ceil
from zlib import crc32

from ebla.actors.errors import NotRunning, WrongServer
from ebla.actors.messages.peers import LivenessReply, LivenessRequest
from ebla.actors.replication.configuration import Configuration
from ebla.actors.replication.health import NOT_RUNNING
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.links import CALL_TIMEOUT_S, Step
from ebla.actors.tablet.engine.others import AGAIN_SHARE, INTERVAL_SHARE, Other
from ebla.actors.tablet.engine.quiescence import AWAKE, Answered, Contacts, Stance
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.world import World
from ebla.storage.errors import EblaError

# Of a lease, between two looks at the other servers. The first one after a message comes when it should have an answer, and the second
# when the next message is due.
LOOK_SHARE = INTERVAL_SHARE - AGAIN_SHARE
# Of an election timeout: a loop that sleeps longer was paused, and could not take answers.
PAUSED_SHARE = 0.75
AT_ONCE_MAX = 64  # groups that wake at once because a server is silent, or has answered again
# The least number of those that wake because a server has answered again: groups without a leader come first.
AMONG_ELECTIONS_MIN = 8


class Liveness:
    """`serving`: whether this server serves; one that is stopping is silent, so that others take over. `loading`: whether it has not
    loaded all of its replicas."""

    def __init__(
        self,
        world: World,
        identity: Identity,
        heartbeat_s: float,
        lease_s: float,
        silent_s: float,
        refused_s: float,
        serving: Callable[[], bool],
        loading: Callable[[], bool],
    ) -> None:
        """`heartbeat_s`: between the messages of a leader that is not quiescent. `refused_s`: between two times at which groups that
        are quiescent without a starting server learn that it starts."""
        self.world = world
        self.identity = identity
        self.heartbeat_s = heartbeat_s
        self.lease_s = lease_s
        self.silent_s = silent_s
        self.refused_s = refused_s
        self.serving = serving
        self.loading = loading
        self._answered: dict[str, Answered] = {}
        self._received: dict[str, float] = {}
        self.contacts = Contacts(self._answered, self._received)
        self._others: dict[str, Other] = {}
        self._stances: dict[Replica, Stance] = {}  # of those that are not awake
        # Followers that woke because a server is silent, which one, and when: each until it has another leader, for an election
        # timeout at most.
        self._roused: dict[Replica, tuple[str, float]] = {}
        # Messages to one server. Those that are lost hold their places until they time out, long after the others have lost patience:
        # before that, there must be room for the next one.
        self.in_flight_max = 2 + ceil(silent_s / (AGAIN_SHARE * lease_s))

    def start(self, step: Step, stuck: Callable[[float], bool], elections: Callable[[], int]) -> None:
        """`step`: feeds an event to a replica, see Rounds.step. `stuck`: whether this server's rounds hang, so that its leaders
        could serve nothing: then it is silent. `elections`: how many are under way here."""
        self.step = step
        self.stuck = stuck
        self.elections = elections
        self.world.spawn(self._run(), "liveness")

    # -- the stances of the replicas here

    def note(self, replica: Replica) -> None:
        """Take a replica's stance after an event, or its end."""
        for uuid in (*_named(self._before(replica)), *_named(_stance(replica))):
            self._other(uuid)  # this may wake replicas, which calls `note` again: from here on it does not
        if replica.state != RUNNING:
            self._roused.pop(replica, None)
        before, stance = self._before(replica), _stance(replica)
        if stance is AWAKE:
            self._stances.pop(replica, None)
        else:
            self._stances[replica] = stance
        self._change(replica, before, stance)

    def _before(self, replica: Replica) -> Stance:
        return self._stances.get(replica, AWAKE)

    def _change(self, replica: Replica, before: Stance, after: Stance) -> None:
        tablet = replica.tablet
        for uuid in _without(before.relying, after.relying):
            other = self._other(uuid)
            if other.led.get(tablet) is replica:
                del other.led[tablet]
                other.leader_changes.add(tablet)
        for uuid in _without(before.absent, after.absent):
            self._other(uuid).absent.pop(tablet, None)
        for uuid in _without(after.relying, before.relying):
            other = self._relied_on(replica, uuid)
            other.leader_changes.numbers.pop(tablet, None)
            other.led[tablet] = replica
        for uuid in _without(after.absent, before.absent):
            self._relied_on(replica, uuid).absent[tablet] = replica
        if before.follows != after.follows:
            if before.follows is not None:
                other = self._other(before.follows)
                if other.followed.get(tablet) is replica:
                    del other.followed[tablet]
                    other.follower_changes.add(tablet)
            if after.follows is not None:
                other = self._other(after.follows)
                self._received[other.uuid] = self.world.now()
                other.followed[tablet] = replica
                other.follower_changes.add(tablet)

    def _relied_on(self, replica: Replica, uuid: str) -> Other:
        peer = replica.core.configuration.peer(uuid)
        assert peer is not None, ("a leader relies on members", replica.tablet, uuid)
        other = self._other(uuid)
        other.since = max(other.since, replica.core.progress[uuid].contact_at)
        other.address = peer.address
        return other

    def _other(self, uuid: str) -> Other:
        """What is known of this incarnation of the server; what relied on an earlier one wakes."""
        start = self.identity.others.known(uuid).start
        other = self._others.get(uuid)
        if other is not None and other.start == start:
            return other
        self._others[uuid] = made = Other(uuid, start)
        if other is not None:
            made.since, made.in_flight, made.address = other.since, other.in_flight, other.address
            # The numbers go on, so that an answer to an earlier message clears no later change.
            made.leader_changes.last = other.leader_changes.last
            made.absent = other.absent  # they rely on nothing, and wake when it answers
            # They first take the last answer of the earlier incarnation, or quiet time would seem silence.
            ours, theirs = self._successions(other)
            self._wake("restarted", [*other.led.values(), *ours, *theirs])
            self._answered.pop(uuid, None)
        return made

    def _wake(self, why: str, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            if replica.state == RUNNING and replica.core.stance is not AWAKE:
                self.world.faults.reached(f"tablet.liveness.{why}")
                self.step(replica, replica.core.wake, self.world.now())

    def note_end(self, uuid: str, now: float) -> None:
        """Wake followers of this server's leaders, in waves, without waiting for its silence: its process has ended."""
        other = self._other(uuid)
        other.has_ended = True
        if other.followed:
            self._rouse(other, now)

    # -- views

    def met(self, uuid: str) -> str:
        """The incarnation of the server that is known here; "" if it is not known."""
        return self._others[uuid].start if uuid in self._others else ""

    def doubted(self, since: float) -> dict[str, Replica]:
        """The leaders here that are quiescent without a server, or rely on one that has answered no message sent since then."""
        found: dict[str, Replica] = {}
        for uuid, other in self._others.items():
            answered = self._answered.get(uuid)
            if answered is None or answered.sent_at < since:
                found.update(other.led)
            found.update(other.absent)
        return found

    def changes_for(self, uuid: str) -> list[str]:
        """The tablets whose follower here has changed its stance, until the server knows."""
        return list(self._others[uuid].follower_changes.numbers) if uuid in self._others else []

    # -- messages

    def receive(self, request: LivenessRequest) -> LivenessReply:
        """Take another server's message, whose sender was checked."""
        other = self._other(request.source.uuid)
        self._received[other.uuid] = self.world.now()
        if request.dest.start == self.identity.instance.start:
            other.follower_changes.taken(request.taken)
        self._wake(
            "leader_woke", [other.followed[tablet] for tablet in request.woken if tablet in other.followed]
        )
        names = other.follower_changes.numbers
        return LivenessReply(
            self.identity.instance,
            woken=tuple(tablet for tablet in names if tablet not in other.followed),
            quiescent=tuple(tablet for tablet in names if tablet in other.followed),
            upto=other.follower_changes.last,
            loading=self.loading(),
        )

    async def _exchange(self, other: Other) -> None:
        other = self._other(other.uuid)  # what was taken belongs to the incarnation that is asked
        changes, sent_at = other.leader_changes, self.world.now()
        instance, known = self.identity.instance, self.identity.others.known(other.uuid)
        request = LivenessRequest(instance, known, tuple(changes.numbers), changes.last, other.taken)
        try:
            reply = await self.world.network.call(
                other.address, "liveness", request, LivenessReply, CALL_TIMEOUT_S
            )
        except EblaError as error:
            self.identity.failed(error)
            if isinstance(error, NotRunning | WrongServer):
                await self._refused(self._other(other.uuid), error, self.world.now())
        else:
            if self.identity.answered(reply):
                self._take(self._other(other.uuid), reply, request.upto, sent_at)
        finally:
            now_known = self._others[other.uuid]
            now_known.in_flight -= 1
            assert 0 <= now_known.in_flight < self.in_flight_max, (
                "each message has a place",
                now_known.in_flight,
            )

    async def _refused(self, other: Other, error: EblaError, now: float) -> None:
        """Leaders here must know: how long they wait for their peers there depends on the reason. Those that were quiescent without
        it before learn it from time to time. Between some of them, other messages have their turn."""
        concerned = [(other.led, replica) for replica in other.led.values()]
        if now >= other.refused_at + self.refused_s:
            other.refused_at = now
            concerned += [(other.absent, replica) for replica in other.absent.values()]
        if isinstance(error, WrongServer):
            self._wake("refused", [replica for _, replica in concerned])
            return
        for number, (those, replica) in enumerate(concerned, 1):
            if those.get(replica.tablet) is replica and replica.state == RUNNING:
                self.world.faults.reached("tablet.liveness.refused")
                self.step(replica, replica.core.note_refusal, self.world.now(), other.uuid, NOT_RUNNING)
            if number % AT_ONCE_MAX == 0:
                await self.world.clock.sleep(0)
                if self._others[other.uuid] is not other:
                    return  # what relied on this incarnation has woken

    def _take(self, other: Other, reply: LivenessReply, upto: int, sent_at: float) -> None:
        """Take an answer. The replicas for which it does not count wake before it counts for the others."""
        self._wake("woken", [other.led[tablet] for tablet in reply.woken if tablet in other.led])
        for tablet in reply.quiescent:
            if tablet not in other.led:
                self.world.faults.reached("tablet.liveness.unwanted")
                other.leader_changes.add(tablet)
        other.taken = max(other.taken, reply.upto)
        other.leader_changes.taken(upto)
        now, before = self.world.now(), self._answered.get(other.uuid)
        latest = sent_at if before is None else max(before.sent_at, sent_at)
        self._answered[other.uuid] = Answered(latest, now)
        other.since = now
        if not reply.loading:
            self._return(other, now)

    def _return(self, other: Other, now: float) -> None:
        """Wake some groups that were quiescent without the server, when those before are quiescent with it."""
        other.returned = {
            replica: at
            for replica, at in other.returned.items()
            if now < at + self.silent_s and other.led.get(replica.tablet) is not replica
        }
        most = max(AMONG_ELECTIONS_MIN, AT_ONCE_MAX - self.elections())
        some = list(islice(other.absent.values(), max(0, most - len(other.returned))))
        self._wake("returned", some)
        other.returned.update((replica, now) for replica in some)

    # -- time

    async def _run(self) -> None:
        while True:
            began = self.world.now()
            pause_s = max(self._due(began) - began, self.heartbeat_s / 10)
            await self.world.clock.sleep(pause_s)
            if not self.serving():
                return
            now = self.world.now()
            if now - began > PAUSED_SHARE * self.silent_s:
                self.contacts.paused_until = now
            self._pardon(now - began - pause_s, now)
            self.contacts.watched_at = now
            goes = any(
                now >= self._next_at(each) for each in self._others.values() if self._is_sent(each, now)
            )
            for uuid in list(self._others):
                self._watch(self._other(uuid), self.world.now(), goes)

    def _pardon(self, late_s: float, now: float) -> None:
        """Do not take our own delay for the silence of others: their messages may wait for us. Otherwise a server with thousands of
        replicas whose processor is busy would let all of them elect, which keeps it busy."""
        if late_s > self.heartbeat_s:
            self.world.faults.reached("tablet.liveness.late")
            for uuid, at in self._received.items():
                self._received[uuid] = min(now, at + late_s)

    def _due(self, now: float) -> float:
        """The time of the next message, or of the end of patience with a server."""
        due = now + LOOK_SHARE * self.lease_s
        for other in self._others.values():
            if self._is_sent(other, now):
                due = min(due, self._next_at(other))
            if other.followed:
                due = min(due, now if other.has_ended else self._received[other.uuid] + self.silent_s)
        return due

    def _is_sent(self, other: Other, now: float) -> bool:
        """Whether the server gets messages: it needs them, and there is a place for the next one."""
        return other.wanted(now) and other.in_flight < self.in_flight_max

    def _next_at(self, other: Other) -> float:
        return other.next_at(self._answered.get(other.uuid), self.lease_s)

    def _watch(self, other: Other, now: float, goes: bool) -> None:
        """`goes`: a message goes to some server now."""
        is_early = now < other.early_at(self._answered.get(other.uuid), self.lease_s)
        if goes and self._is_sent(other, now) and not is_early and not self.stuck(now):
            other.sent_at = now
            other.in_flight += 1
            self.world.spawn(self._exchange(other), f"liveness to {other.address}")
        if other.followed and (other.has_ended or self._is_silent(other, now)):
            self._rouse(other, now)
        silent_from = max(other.since, self.contacts.paused_until) + self.silent_s
        if other.led and now >= max(silent_from, other.noted_at + self.heartbeat_s):
            other.noted_at = now
            self._note_silence(other, now)

    def _note_silence(self, other: Other, now: float) -> None:
        """Let some leaders know that the server is silent, in turn, until none relies on it. If all of them stepped down at once
        because this process was busy, their elections would keep it busy."""
        for tablet in list(islice(other.led, AT_ONCE_MAX)):
            replica = other.led.pop(tablet, None)
            if replica is None:
                continue  # it woke with another one, because a third server was started again
            other.led[tablet] = replica
            if replica.state == RUNNING:
                self.step(replica, replica.core.note_silence, now)

    def _rouse(self, other: Other, now: float) -> None:
        """Wake some followers of the silent server's leaders. Elections of thousands of groups take a processor as long as they take;
        if they began at once, other servers would seem silent because of them, and their groups would elect, too, without end."""
        self._roused = {
            replica: (silent, at)
            for replica, (silent, at) in self._roused.items()
            if now < at + self.silent_s
            and _stance(replica) is AWAKE
            and replica.core.leader in (None, silent)
        }
        room = AT_ONCE_MAX - sum(silent == other.uuid for silent, _ in self._roused.values())
        if room <= 0:
            return
        ours, theirs = self._successions(other)
        some = [*ours, *(theirs if self._is_silent(other, now) else ())][:room]
        self._wake("silent", some)
        for replica in some if other.has_ended else ():
            if replica.state == RUNNING:
                self.step(replica, replica.core.note_end, now, other.uuid, 0.0)
        self._roused.update((replica, (other.uuid, now)) for replica in some if replica.core.may_elect(now))

    def _is_silent(self, other: Other, now: float) -> bool:
        """Whether the server of leaders that have followers here is silent."""
        return now >= self._received[other.uuid] + self.silent_s

    def _successions(self, other: Other) -> tuple[list[Replica], list[Replica]]:
        """The followers of the server's leaders: those that elect first, because this server is the successor that a hash of the tablet
        chooses among the other voters, and the others. So servers that wake followers of the same leaders do not campaign
        against each other, and share the leaderships."""
        ours: list[Replica] = []
        theirs: list[Replica] = []
        for replica in other.followed.values():
            chosen = successor(replica.core.configuration, replica.tablet, other.uuid)
            (ours if chosen == self.identity.instance.uuid else theirs).append(replica)
        return ours, theirs


def successor(configuration: Configuration, tablet: str, leader: str) -> str | None:
    """The voter that should lead after this leader: a hash shares the tablets among the other voters."""
    voters = sorted(each.uuid for each in configuration.voters() if each.uuid != leader)
    return voters[crc32(tablet.encode()) % len(voters)] if voters else None


def _stance(replica: Replica) -> Stance:
    return replica.core.stance if replica.state == RUNNING else AWAKE


def _named(stance: Stance) -> tuple[str, ...]:
    """The servers that the stance relies on."""
    servers = *stance.relying, *stance.absent
    return servers if stance.follows is None else (*servers, stance.follows)


def _without(servers: tuple[str, ...], others: tuple[str, ...]) -> list[str]:
    return [uuid for uuid in servers if uuid not in others]
