"""The story of a run, for people: faults, crashes, and the clients' requests and answers.

Messages between nodes are left out unless requested; there are thousands. If a checker found the violation, the story shows
the time around the events that the violation names, and of clients only operations on the keys of these events. If an
invariant broke, it shows the time before the end of the run. Then follow the notes of the tablet's replicas on their terms
and elections. All times are times of the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from ebla.actors.tablet.server import TabletServer
from ebla.chaos.checkers.verdict import canonical
from ebla.chaos.history import INVOKE, Event
from ebla.chaos.runs import Run, Violation
from ebla.chaos.simulation.deployment import address_of

MESSAGES = ("call", "arrive", "answer", "NotDelivered", "OutcomeUnknown")
AROUND_S = 6.0  # half of it before and half after an event; all of it before the end of the run
NOTES_MAX = 12  # of one replica
VALUE_MAX = 120  # characters
NAMES_EVENTS = re.compile(r"\bevents? (\d+)(?: and (\d+))?")


@dataclass(frozen=True)
class Line:
    """`kind`: fault, node, message, or the name of the client's workload."""

    at_s: float
    kind: str
    text: str


def story(run: Run, *, messages: bool = False, around_s: float | None = AROUND_S) -> list[Line]:
    """Lines in order of time: those that concern the violation, within `around_s`; or all (None)."""
    asked = _asked(run, lambda name, event: True) if around_s is None else _asked(run, _concerned(run))
    within = _window(run, around_s)
    lines = [line for line in (*_traced(run, messages), *asked) if within(line.at_s)]
    return sorted(lines, key=lambda line: line.at_s)


def _window(run: Run, around_s: float | None) -> Callable[[float], bool]:
    if around_s is None:
        return lambda at_s: True
    moments = [event.time_us / 1e6 for event in _shown(run)]
    if moments:
        return lambda at_s: any(abs(at_s - moment) <= around_s / 2 for moment in moments)
    ended_s = max(
        [line.at_s for line in (*_traced(run, False), *_asked(run, lambda name, event: True))], default=0.0
    )
    return lambda at_s: at_s >= ended_s - around_s


def _concerned(run: Run) -> Callable[[str, Event], bool]:
    """A predicate: whether a client's event is about a key that the violation names."""
    shown = _shown(run)
    if not shown:
        return lambda name, event: True
    keys, workload = {canonical(event.key) for event in shown}, _workload(run)
    return lambda name, event: name == workload and canonical(event.key) in keys


def _shown(run: Run) -> list[Event]:
    """The events that show the violation: those that its sentence names, or else all events of the verdict."""
    if run.judged is None:
        return []
    events = run.histories[_workload(run)].events
    named = [int(each) for found in NAMES_EVENTS.findall(run.violation) for each in found if each]
    return [events[place] for place in named or run.judged.events if place < len(events)]


def _workload(run: Run) -> str:
    """A checker's violation begins with the workload's name."""
    return run.violation.removeprefix(f"{Violation.__name__}: ").partition(":")[0]


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
    "pause": "pauses",
    "resume": "resumes",
    "supersede": "is believed dead",
    "fail": "fails",
}


def _asked(run: Run, wanted: Callable[[str, Event], bool]) -> Iterator[Line]:
    for name, history in run.histories.items():
        for event in filter(partial(wanted, name), history.events):
            yield Line(event.time_us / 1e6, name, _line(event))


def _line(event: Event) -> str:
    words = [f"{event.index:5} client {event.process:3}", "asks" if event.type == INVOKE else event.type]
    words.append(event.operation)
    if event.key is not None:
        words.append(str(event.key))
    if event.value is not None and (event.type in (INVOKE, "ok")):
        words.append(f"{'=' if event.type == INVOKE else '->'} {str(event.value)[:VALUE_MAX]}")
    if event.error:
        words.append(f"({event.error[:120]})")
    return " ".join(words)


def replicas(run: Run, *, around_s: float | None = AROUND_S) -> Iterator[tuple[str, list[str]]]:
    """Each replica of the tablets that the violation names (of all tablets, if it names none), with its last notes."""
    cluster = run.deployment.cluster if run.deployment else None
    within = _window(run, around_s)
    for address in map(address_of, run.deployment.hosts) if run.deployment else ():
        role = cluster.role(address) if cluster and cluster.known(address) else None
        if cluster is None or not isinstance(role, TabletServer):
            continue
        clock = cluster.clock(address)
        named = [tablet for tablet in role.replicas if tablet in run.violation]
        for tablet in named or role.replicas:
            notes = [note.partition(" ") for note in role.replicas[tablet].core.story().splitlines()]
            at = [(clock.virtual_s(float(reading)), what) for reading, _, what in notes]
            shown = [f"{at_s:.3f} {what}" for at_s, what in at if within(at_s)]
            if shown:
                yield f"{address} {tablet}", shown[-NOTES_MAX:]
