"""A planner of PacificA tablets with a catalog and a detector, and servers that are scripted."""

from __future__ import annotations

from ebla.actors.detector.detector import Detector
from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.pacifica.planner import Plan, Planner
from ebla.actors.messages import RecordedInstance, ReplicaReport, ServerInstance
from ebla.actors.messages.appointments import ConfigurationsRequest, Requested
from ebla.actors.messages.pacifica import PacificaView
from ebla.actors.replication.configuration import Configuration
from tests.master.builders import Story, report

LIMITS = DetectorLimits()
GRACE_S = LIMITS.grace_s


class Deployment:
    """A catalog, its detector and its planner, and servers that send beacons. `created`: all servers have reported their replicas."""

    def __init__(self, voters: str = "abc", **changes: object) -> None:
        self.story = Story()
        created = changes.pop("created", True)
        self.tablets = self.story.appointed(voters, **changes)
        for uuid in voters if created else "":
            self.story.apply(e.ReplicasSeen(uuid, tuple(self.tablets)))
        self.now = 0.0
        self.starts = dict.fromkeys(voters, 1)
        self.detector = Detector(LIMITS, self.now, [(uuid, None) for uuid in voters])
        self.planner = Planner(self.story.catalog, self.detector)
        self.beacons(voters)
        self.commit(self.plan())
        self.beacons(voters)

    def take_over(self) -> None:
        """Another master begins, with the catalog."""
        recorded = self.story.catalog.incarnations
        self.detector = Detector(LIMITS, self.now, [(uuid, recorded.get(uuid)) for uuid in self.starts])
        self.planner = Planner(self.story.catalog, self.detector)

    def instance(self, uuid: str) -> ServerInstance:
        return ServerInstance(uuid, self.starts[uuid], f"start {self.starts[uuid]} of {uuid}")

    def beacons(self, uuids: str, lease: int = 1) -> list[str]:
        for uuid in uuids:
            self.holds(uuid)
        return [self.detector.beacon(self.now, self.instance(uuid), lease) for uuid in uuids]

    def holds(self, uuid: str, *, verified: bool = False) -> None:
        """The server reports that its secondaries run."""
        known = {tablet: self.stored(tablet) for tablet in self.tablets}
        replicas = [
            shown(tablet, made, made.index, "secondary", verified=verified)
            for tablet, made in known.items()
            if made.primary != uuid
        ]
        self.planner.take(self.now, self.instance(uuid), report(*replicas))

    def restart(self, uuid: str) -> None:
        self.starts[uuid] += 1
        self.beacons(uuid)

    def passes(self, seconds: float, alive: str = "") -> None:
        """Time passes, in which these servers send beacons."""
        self.now += seconds
        self.beacons(alive)

    def silence(self, uuids: str) -> None:
        """All but these servers live on until the grace is over."""
        others = "".join(uuid for uuid in self.starts if uuid not in uuids)
        for _ in range(2):
            self.passes(GRACE_S / 2, others)

    def stored(self, tablet: str = "") -> Configuration:
        known = self.story.catalog.tablets[tablet or self.tablets[0]].configuration
        assert known is not None
        return known

    def plan(self, *asked: ConfigurationsRequest) -> Plan:
        return self.planner.plan(self.now, asked)

    def commit(self, plan: Plan) -> None:
        """Make the plan durable."""
        begun = tuple(
            RecordedInstance(end.uuid, end.instance.seqno, end.instance.start, end.restarts)
            for end in plan.ends
            if end.instance is not None
        )
        self.story.apply(e.ConfigurationsAppointed(plan.configurations, begun))
        for end in plan.ends:
            self.detector.ended(end)
        self.planner.settled()
        for tablet in plan.configurations:
            self.planner.changed(tablet)

    def declines(self, uuid: str, ballot: int | None = None) -> None:
        """The server answers the order of this ballot: its replica does not run."""
        stamp = self.detector.lease(uuid)
        assert stamp is not None
        self.planner.declined(self.tablets[0], stamp, ballot or self.stored().index)

    def asks(self, uuid: str, *configurations: Configuration) -> ConfigurationsRequest:
        """The request of a primary, made now: the present process of each successor holds everything."""
        named = zip(self.tablets, configurations, strict=False)
        requested = (Requested(*each, self.instance(each[1].primary or uuid)) for each in named)
        return ConfigurationsRequest(self.instance(uuid), tuple(requested))

    def reports(self, uuid: str, ballot: int, role: str = "inactive", **changes: object) -> None:
        known = self.stored()
        replica = shown(self.tablets[0], known, ballot, role, **changes)
        self.planner.take(self.now, self.instance(uuid), report(replica))


def shown(
    tablet: str, known: Configuration, ballot: int, role: str, *, verified: bool = False, **changes: object
) -> ReplicaReport:
    leader = known.primary if role != "inactive" else None
    view = PacificaView(role, ballot, leader, 1, 1, verified=verified)
    values = {"state": "running", "configuration": known, **changes}
    return ReplicaReport(tablet=tablet, view=view, **values)
