"""What happened in a run, told so that a person can follow it: faults, deaths, what clients asked and heard.

Messages between nodes are left out unless they are asked for; there are thousands. Told is what lies around the events
that a checker names, or the end of the run, where an invariant broke. Then comes what the replicas of the tablet in
question remember of their own terms and elections.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ebla.actors.tablet.server import TabletServer
from ebla.chaos.history import INVOKE, Event
from ebla.chaos.simulation.deployment import address_of
from ebla.chaos.simulation.runs import Run, Violation

MESSAGES = ("call", "arrive", "answer", "NotDelivered", "OutcomeUnknown")
AROUND_S = 6.0  # half of it before and half after an event; all of it before the end of the run
NOTES_MAX = 12  # of one replica
VALUE_MAX = 120  # characters


@dataclass(frozen=True)
class Line:
    """`kind`: fault, node, message, or the name of the workload whose client speaks."""

    at_s: float
    kind: str
    text: str


def story(run: Run, *, messages: bool = False, around_s: float | None = AROUND_S) -> list[Line]:
    """In order of time; the `around_s` around the violation only, or all of it (None)."""
    lines = [*_traced(run, messages), *_asked(run)]
    lines.sort(key=lambda line: line.at_s)
    if around_s is None or not lines:
        return lines
    moments = _moments(run)
    if not moments:
        return [line for line in lines if line.at_s >= lines[-1].at_s - around_s]
    return [line for line in lines if any(abs(line.at_s - at_s) <= around_s / 2 for at_s in moments)]


def _moments(run: Run) -> list[float]:
    """When the events were noted that show the violation. A violation that a checker found opens with its workload."""
    if run.judged is None:
        return []
    workload = run.violation.removeprefix(f"{Violation.__name__}: ").partition(":")[0]
    events = run.histories[workload].events
    return [events[place].time_us / 1e6 for place in run.judged.events]


def _traced(run: Run, messages: bool) -> Iterator[Line]:
    for traced in run.loop.story:
        at, _, rest = traced.partition(" ")
        word, _, facts = rest.partition(" ")
        if word == "fault":
            yield Line(float(at), "fault", facts.partition(": ")[2])
        elif word not in MESSAGES:
            yield Line(float(at), "node", f"{facts} {_PAST.get(word, word)}")
        elif messages:
            number, sender, receiver, method, *_ = facts.split(" ")
            yield Line(float(at), "message", f"{word} #{number} {sender} > {receiver} {method}")


_PAST = {
    "start": "starts",
    "crash": "crashes",
    "stop": "stops",
    "pause": "stands still",
    "resume": "goes on",
    "supersede": "is believed dead",
    "fail": "fails",
}


def _asked(run: Run) -> Iterator[Line]:
    for name, history in run.histories.items():
        for event in history.events:
            yield Line(event.time_us / 1e6, name, _said(event))


def _said(event: Event) -> str:
    words = [f"{event.index:5} client {event.process:3}", "asks" if event.type == INVOKE else event.type]
    words.append(event.operation)
    if event.key is not None:
        words.append(str(event.key))
    if event.value is not None and (event.type in (INVOKE, "ok")):
        words.append(f"{'=' if event.type == INVOKE else '->'} {str(event.value)[:VALUE_MAX]}")
    if event.error:
        words.append(f"({event.error[:120]})")
    return " ".join(words)


def replicas(run: Run) -> Iterator[tuple[str, list[str]]]:
    """Of every tablet that the violation names, or of all if it names none: each replica, and its last notes."""
    cluster = run.deployment.cluster if run.deployment else None
    for address in map(address_of, run.deployment.hosts) if run.deployment else ():
        role = cluster.role(address) if cluster and cluster.known(address) else None
        if not isinstance(role, TabletServer):
            continue
        named = [tablet for tablet in role.replicas if tablet in run.violation]
        for tablet in named or role.replicas:
            notes = role.replicas[tablet].core.story().splitlines()
            yield f"{address} {tablet}", notes[-NOTES_MAX:]
