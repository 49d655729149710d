"""Every history of one small ledger, to a stated bound: a live writer, clients that recover the ledger, a worker, and three or four stores.

The explorer drives the product's own rules: metadata and their changes, what a store admits, a writer's window, what readers and
recoveries conclude, what a worker plans. Between them it chooses in every way which request arrives next, which answer is received, which
store stops, is replaced or is lost. A request that was sent may arrive at any later time, or never; so may an answer. Each client's entries
reach a store in the order in which they were sent.

What must hold of every state:

    one end        the end of a closed ledger never changes
    acknowledged   an acknowledged entry is in the closed ledger, and has a copy at a store that the metadata name
    fenced         a store that has answered a fence takes no entry of the writer
    seen           what a reader may have returned is in the closed ledger
    complete       a reader that gets enough answers returns every acknowledged entry
    whole          entries of a closed ledger are on an ack quorum, and after a worker on the write quorum

The search is breadth first, so a broken promise comes with the shortest way there.
"""

from __future__ import annotations

import gc
from collections import deque

from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.handles.window import Window
from tests.ledger.exploring.network import with_link
from tests.ledger.exploring.states import ENDING, Adder, Link, Recovery, State, Store, canonical
from tests.ledger.exploring.values import Bounds
from tests.ledger.exploring.worker import Workers


class Broken(AssertionError):
    """An invariant does not hold; `steps` led there."""

    def __init__(self, problem: str, steps: list[str]) -> None:
        super().__init__(f"{problem} after {len(steps)} steps: {'; '.join(steps)}")


class Explorer(Workers):
    def first_state(self) -> State:
        bounds = self.bounds
        links = (Link(),) * (1 + bounds.recoveries + bounds.worker)
        stores = (Store(0, False, meta.NONE, False, False, (), links),) * bounds.stores
        view = (0, 1, 2)
        return State(
            stores,
            Adder(view, meta.NONE, 0),
            (Recovery(),) * bounds.recoveries,
            None,
            self.values.first(),
            ((0, view),),
            (),
            meta.NONE,
            meta.NONE,
            0,
            0,
        )

    # -- what must hold

    def problem(self, before: State, after: State) -> str | None:
        """The promise that this step breaks."""
        found = self.values.metadata(after.catalog)
        if before.catalog != after.catalog:
            earlier = self.values.metadata(before.catalog)
            if earlier.closed and (earlier.last, earlier.state) != (found.last, found.state):
                return (
                    f"one end: the ledger was closed at {earlier.last}, and is {found.state} at {found.last}"
                )
        if found.closed and not self.is_closed(before) and (problem := self._other_end(after)):
            return problem
        if found.closed:
            return self._problem_of_closed(after, found)
        for entry in range(after.acknowledged + 1):
            if self._survives(after, found, entry) and self._copies(after, found, entry) == 0:
                return f"acknowledged: no store of the metadata has entry {entry}"
        first, segment = after.versions[-1]
        stores = tuple(after.stores[at] for at in segment)
        if self.values.ends(first, stores)[1] < after.acknowledged:
            return f"complete: a reader misses the acknowledged entry {after.acknowledged}"
        return None

    def _problem_of_closed(self, state: State, found: meta.Metadata) -> str | None:
        later = self._at_last(state)
        left_out = self._survives(state, found, found.last + 1)
        if left_out and later.acknowledged > found.last:
            return f"acknowledged: entry {later.acknowledged} is not in the ledger, closed at {found.last}"
        if left_out and later.shown > found.last:
            return (
                f"seen: a reader has returned entry {later.shown}, and the ledger is closed at {found.last}"
            )
        least = found.ack_quorum - state.losses
        for entry in range(found.last + 1):
            if self._copies(state, found, entry) < least:
                return f"whole: entry {entry} is on less than {least} stores of the metadata"
        return None

    def _at_last(self, state: State) -> State:
        """The ledger is closed. All that can still be acknowledged is, and all that can be returned by readers."""
        if not state.writer.ended:
            while state.writer.next < self.bounds.entries:
                state = self._add(state, state.writer, state.writer.lac)
        stores = []
        for store in state.stores:
            held = store.held
            for link, found in enumerate(store.links):
                held |= found.sent if link or not store.fenced else 0
            taken = store.links[0]
            if not store.fenced:
                taken = taken._replace(ok=taken.sent)
            stores.append(store if store.lost else with_link(store._replace(held=held), 0, taken))
        after = self._acknowledged(state._replace(stores=tuple(stores)))
        return after._replace(shown=self.observed(state, after).shown)

    def is_closed(self, state: State) -> bool:
        """Then nothing but arrivals of what was sent can come, and repairs: `problem` has judged the state with all arrivals."""
        return self.values.metadata(state.catalog).closed

    def _other_end(self, state: State) -> str | None:
        """Nobody who would close the ledger, too, changes its end."""
        later = [self._close(state, state.writer)] if not state.writer.ended else []
        for at, recovery in enumerate(state.recoveries):
            if recovery.phase == ENDING and recovery.adder is not None:
                adder = recovery.adder
                window = Window(self.values.metadata(recovery.found), adder.next - 1, adder.next)
                later.append(self._end(state, at, recovery, window, self.values.metadata(recovery.found)))
        if any(each.catalog != state.catalog for each in later):
            return "one end: a closed ledger is closed again, at another entry"
        return None

    def _survives(self, state: State, found: meta.Metadata, entry: int) -> bool:
        """Whether an acknowledged entry is not lost with the stores that are."""
        return state.losses < found.ack_quorum or self._copies(state, found, entry) > 0

    def _copies(self, state: State, found: meta.Metadata, entry: int) -> int:
        return sum(state.stores[int(store)].held >> entry & 1 for store in meta.stores_of(found, entry))


def explore(bounds: Bounds, states_max: int = 10_000_000) -> int:
    """Visit every state, and return how many there are. Raises Broken."""
    collects = gc.isenabled()
    gc.disable()  # millions of tuples, and no cycles
    try:
        return _explore(Explorer(bounds), states_max)
    finally:
        if collects:
            gc.enable()


def _explore(explorer: Explorer, states_max: int) -> int:
    symmetric = explorer.bounds.write_quorum == 3
    first = explorer.first_state()
    came_from: dict[State, tuple[State | None, tuple[object, ...]]] = {first: (None, ())}
    queue = deque([first])
    met: set[State] = set()  # as they were reached, before they are made canonical
    while queue:
        state = queue.popleft()
        for name, reached in explorer.steps(state):
            if reached in met and reached.catalog == state.catalog and explorer.broken is None:
                continue
            met.add(reached)
            after = explorer.observed(state, reached)
            closed = explorer.is_closed(after)
            kept = explorer.closed(after) if closed else after
            if symmetric:
                kept = canonical(kept, explorer.values.renamed)
            if kept in came_from and explorer.broken is None and not closed:
                continue
            problem = explorer.broken or explorer.problem(state, after)
            if problem is not None:
                raise Broken(problem, [*_way(came_from, state), " ".join(map(str, name))])
            if kept not in came_from:
                came_from[kept] = state, name
                if explorer.bounds.worker or not closed:
                    queue.append(kept)
        assert len(came_from) <= states_max, f"more than {states_max} states"
    return len(came_from)


def _way(came_from: dict[State, tuple[State | None, tuple[object, ...]]], end: State) -> list[str]:
    steps: list[str] = []
    at: State | None = end
    while at is not None:
        at, name = came_from[at]
        steps.append(" ".join(map(str, name)))
    return [step for step in reversed(steps) if step]
