"""The steps of the stores and of the network between them and the clients: arrivals, syncs, crashes, losses."""

from __future__ import annotations

from collections.abc import Iterator

from ebla.actors.ledger.store import rules
from ebla.actors.ledger.store.records import Head
from tests.ledger.exploring.states import FENCING, NOTHING, READING, Adder, Link, State, Store
from tests.ledger.exploring.values import TOKEN, Bounds, Values

Step = tuple[tuple[object, ...], State]
WRITER = 0  # the number of its links
TAIL, READ = -1, -2  # what arrives in place of an entry


def with_store(state: State, at: int, store: Store) -> State:
    return State._make(((*state.stores[:at], store, *state.stores[at + 1 :]), *state[1:]))


def with_link(store: Store, link: int, changed: Link) -> Store:
    links = store.links
    return Store._make((*store[:-1], (*links[:link], changed, *links[link + 1 :])))


class Network:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.values = Values(bounds)
        self.broken: str | None = None

    def steps_of_stores(self, state: State) -> Iterator[Step]:
        for at, store in enumerate(state.stores):
            if store.lost:
                continue
            for link, found in enumerate(store.links):
                has = found.ok if link == WRITER else store.held
                due = found.sent & ~has & ~self._arrived(store, link)
                if due:
                    entry = (due & -due).bit_length() - 1
                    yield ("entry", entry, "of", link, "reaches", at), self._arrive(state, at, link, entry)
            if store.arrived:
                yield ("sync of", at), self._sync(state, at)
            if state.crashes < self.bounds.crashes and (store.arrived or store.lac >= 0):
                yield ("restart of", at), self._restart(state, at)
            if state.losses < self.bounds.losses:
                yield ("loss of", at), self._lose(state, at)

    def steps_of_fences(self, state: State, link: int, phase: int, view: tuple[int, ...]) -> Iterator[Step]:
        """The requests of a recovery to its stores."""
        for at in view:
            store = state.stores[at]
            found = store.links[link]
            kind = TAIL if phase == FENCING else READ
            answered = found.told if phase == FENCING else found.read
            if not store.lost and answered == NOTHING and (link, kind) not in store.arrived:
                name = "a fence" if phase == FENCING else "a read"
                yield (name, "of", link, "reaches", at), self._arrive(state, at, link, kind)

    def _arrived(self, store: Store, link: int) -> int:
        return sum(1 << entry for each, entry in store.arrived if each == link and entry >= 0)

    def _arrive(self, state: State, at: int, link: int, what: int) -> State:
        """The store admits the request or refuses it. Without a crash to come, its sync is a part of the same step: nobody can tell."""
        store = state.stores[at]
        if what >= 0:
            entry = self.values.entry(what, state.stamps)
            fenced = store.fenced or any(kind < 0 for _, kind in store.arrived)
            if not self.values.admits(fenced, entry, recovery=link != WRITER):
                return self.ended(state)  # that the writer never learns is the case in which nothing arrives
        if state.crashes < self.bounds.crashes:
            return with_store(state, at, store._replace(arrived=(*store.arrived, (link, what))))
        earlier = with_store(state, at, store._replace(arrived=()))
        return self._commit(earlier, at, (*store.arrived, (link, what)))

    def ended(self, state: State) -> State:
        """The writer has ended. What it sent may still arrive, unless it would be refused."""
        stores = []
        for store in state.stores:
            sent = 0 if store.fenced else store.links[WRITER].sent & ~store.held
            stores.append(with_link(store, WRITER, Link(sent)))
        writer = Adder(state.writer.view, -1, 0, ended=True)
        return state._replace(stores=tuple(stores), writer=writer)

    def _sync(self, state: State, at: int) -> State:
        arrived = state.stores[at].arrived
        return self._commit(with_store(state, at, state.stores[at]._replace(arrived=())), at, arrived)

    def _commit(self, state: State, at: int, arrived: tuple[tuple[int, int], ...]) -> State:
        """Make durable what has arrived, and answer."""
        store = state.stores[at]
        for link, what in arrived:
            found = store.links[link]
            if what >= 0:
                if link == WRITER and store.promised:
                    self.broken = (
                        f"fenced: store {at} takes entry {what} of the writer after it answered a fence"
                    )
                stamp = state.stamps[what]
                store = store._replace(held=store.held | 1 << what, lac=max(store.lac, stamp))
                if link == WRITER and not state.writer.ended:
                    store = with_link(store, link, found._replace(ok=found.ok | 1 << what))
                continue
            fenced = rules.fenced(Head(TOKEN, store.fenced)).fenced
            store = store._replace(fenced=fenced, promised=True)
            if state.writer.ended:
                store = with_link(store, WRITER, Link())
                found = store.links[link]
            phase = state.recoveries[link - 1].phase
            if what == TAIL and phase == FENCING:
                store = with_link(store, link, found._replace(told=store.lac))
            elif what == READ and phase == READING:
                after = state.recoveries[link - 1].adder.lac + 1
                store = with_link(store, link, found._replace(read=store.held >> after << after))
        return with_store(state, at, store)

    def _restart(self, state: State, at: int) -> State:
        """What was not synced is lost, and what was told without an entry."""
        store = state.stores[at]
        lac = state.stamps[store.held.bit_length() - 1] if store.held else -1
        store = store._replace(arrived=(), lac=lac)
        return with_store(state, at, store)._replace(crashes=state.crashes + 1)

    def _lose(self, state: State, at: int) -> State:
        store = state.stores[at]
        lost = Store(0, False, -1, True, False, (), tuple(Link() for _ in store.links))
        return with_store(state, at, lost)._replace(losses=state.losses + 1)

    def observed(self, before: State, after: State) -> State:
        """With what a reader may have returned by now: a reader may have any last segment that there was."""
        if before.stores == after.stores and before.versions == after.versions:
            return after
        seen = after.shown
        for first, segment in after.versions:
            seen = max(seen, self.values.ends(first, tuple(after.stores[at] for at in segment))[0])
        return after if seen == after.shown else after._replace(shown=seen)
