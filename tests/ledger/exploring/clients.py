"""The steps of the clients: the writer, recoveries, the worker."""

from __future__ import annotations

from collections.abc import Iterator

from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import LedgerClosed, LedgerFenced
from ebla.actors.ledger.handles import ends, writer
from ebla.actors.ledger.handles import recovery as recovery_rules
from ebla.actors.ledger.handles.window import Window
from ebla.actors.ledger.messages import Entry
from ebla.actors.ledger.metadata import Metadata
from tests.ledger.exploring.network import WRITER, Network, Step, with_link, with_store
from tests.ledger.exploring.states import (
    DONE,
    ENDING,
    FENCING,
    IDLE,
    NOTHING,
    READING,
    Adder,
    Join,
    Recovery,
    State,
)
from tests.ledger.exploring.values import bits

BATCH = 64


class Clients(Network):
    def steps(self, state: State) -> Iterator[Step]:
        for name, after in self._steps(state):
            yield name, self._acknowledged(after)

    def _steps(self, state: State) -> Iterator[Step]:
        yield from self.steps_of_stores(state)
        if not state.writer.ended:
            yield from self._steps_of_writer(state)
        for at, recovery in enumerate(state.recoveries):
            if recovery.phase != DONE and (at == 0 or state.recoveries[at - 1].phase != IDLE):
                yield from self._steps_of_recovery(state, at, recovery)

    # -- a writer, or the writing part of a recovery

    def _put(self, state: State, link: int, adder: Adder) -> State:
        if link == WRITER:
            return state._replace(writer=adder)
        at = link - 1
        changed = state.recoveries[at]._replace(adder=adder)
        return state._replace(recoveries=(*state.recoveries[:at], changed, *state.recoveries[at + 1 :]))

    def _window(self, state: State, link: int, adder: Adder) -> Window:
        return self.values.window(adder, state.stores, link, state.stamps)

    def _store_of(self, adder: Adder, position: int) -> int:
        return next((j.store for j in adder.joins if j.position == position), adder.view[position])

    def _send(self, state: State, link: int, at: int, entries: int, afresh: bool = False) -> State:
        store = state.stores[at]
        found = store.links[link]
        if afresh:
            found = found._replace(sent=0, ok=0)
        return with_store(state, at, with_link(store, link, found._replace(sent=found.sent | entries)))

    def _steps_of_adder(self, state: State, link: int, adder: Adder) -> Iterator[Step]:
        budget = self.bounds.replacements if link == WRITER else self.bounds.restores
        if adder.replaced + len(adder.joins) < budget:
            for position in range(3):
                for spare, store in enumerate(state.stores):
                    if spare not in adder.view and not store.lost:
                        for lac in range(self._least(state, link, adder), adder.lac + 1):
                            yield (
                                ("store", adder.view[position], "is replaced by", spare, "by", link),
                                self._join(state, link, adder._replace(lac=lac), position, spare),
                            )

    def _least(self, state: State, link: int, adder: Adder) -> int:
        """The last acknowledged entry that the client has used; it may not have received the later answers."""
        used = state.stamps[-1] if link == WRITER and state.stamps else meta.NONE
        firsts = self.values.metadata(state.catalog).segments[-1].first - 1
        return min(adder.lac, max(used, firsts)) if link == WRITER else state.recoveries[link - 1].start

    def _acknowledged(self, state: State) -> State:
        """What the writer may acknowledge to its user, it does at once: the strongest promise. Steps that depend on what it knows
        are made with every earlier knowledge, too."""
        adder = state.writer
        if adder.ended or adder.lac == adder.next - 1:
            return state
        window = self._window(state, WRITER, adder)
        if not window.acknowledge():
            return state
        reached = max(state.acknowledged, window.lac)
        return state._replace(writer=adder._replace(lac=window.lac), acknowledged=reached)

    def _join(self, state: State, link: int, adder: Adder, position: int, spare: int) -> State:
        wanted = bits(entry.entry for entry in self._window(state, link, adder).join(position))
        joins = (*adder.joins, Join(position, spare, wanted, adder.lac))
        return self._send(self._put(state, link, adder._replace(joins=joins)), link, spare, wanted, True)

    def _joined(self, state: State, link: int, adder: Adder) -> bool:
        return bool(adder.joins) and all(
            not join.wanted & ~self.values.taken(state.stores[join.store], link) for join in adder.joins
        )

    def _replaced(self, adder: Adder) -> dict[int, str]:
        return {join.position: str(join.store) for join in adder.joins}

    def _take_over(self, state: State, link: int, adder: Adder) -> State:
        """The next stores' entries count from now on."""
        view = list(adder.view)
        for join in adder.joins:
            view[join.position] = join.store
        changed = adder._replace(
            view=tuple(view),
            joins=(),
            published=False,
            replaced=adder.replaced + len(adder.joins),
        )
        if self.bounds.write_quorum == 3:
            changed = changed._replace(view=tuple(sorted(view)))
        return self._put(state, link, changed)

    # -- the writer

    def _steps_of_writer(self, state: State) -> Iterator[Step]:
        adder = state.writer
        yield from self._steps_of_adder(state, WRITER, adder)
        if adder.next < self.bounds.entries:
            yield from self._steps_of_adding(state, adder)
        if self.bounds.confirms:
            for at in adder.view:
                store = state.stores[at]
                if not store.lost and store.lac < adder.lac:
                    yield (
                        (at, "learns that", adder.lac, "is acknowledged"),
                        with_store(state, at, store._replace(lac=adder.lac)),
                    )
        if self._joined(state, WRITER, adder):
            yield from self._steps_of_publishing(state, adder)
        if adder.lac == adder.next - 1:
            yield ("the writer closes",), self._close(state, adder)

    def _steps_of_adding(self, state: State, adder: Adder) -> Iterator[Step]:
        """An entry is added when it first reaches a store: before, nobody can tell."""
        for stamp in range(self._least(state, WRITER, adder), adder.lac + 1):
            added = self._add(state, adder, stamp)
            for at, store in enumerate(added.stores):
                link = store.links[WRITER]
                if (
                    not store.lost
                    and link.sent >> adder.next & 1
                    and not link.sent & ~link.ok & ~(1 << adder.next)
                ):
                    yield (
                        ("entry", adder.next, "after", stamp, "reaches", at),
                        self._arrive(added, at, WRITER, adder.next),
                    )

    def _add(self, state: State, adder: Adder, stamp: int) -> State:
        state = state._replace(stamps=(*state.stamps, stamp))
        window = self._window(state, WRITER, adder)
        entry = self.values.entry(adder.next, state.stamps)
        state = self._put(state, WRITER, adder._replace(next=adder.next + 1))
        for position in window.add(entry):
            state = self._send(state, WRITER, self._store_of(adder, position), 1 << entry.entry)
        return state

    def _steps_of_publishing(self, state: State, adder: Adder) -> Iterator[Step]:
        """Each try names the entry that was acknowledged when it began, and may be made late."""
        if adder.published:
            yield ("the writer learns of the change",), self._take_over(state, WRITER, adder)
            return
        for lac in range(adder.joins[0].lac, adder.lac + 1):
            yield ("the change from", lac + 1, "on is made"), self._publish(state, adder, lac)

    def _publish(self, state: State, adder: Adder, lac: int) -> State:
        found = self.values.metadata(state.catalog)
        try:
            meta.require_open(found)
        except LedgerFenced:
            return self.ended(state)
        changed = meta.with_replaced(found, lac, self._replaced(adder))
        state = state._replace(writer=adder._replace(published=True))
        return self._with_catalog(state, changed)

    def _with_catalog(self, state: State, changed: Metadata) -> State:
        number = self.values.number(changed)
        newest = self.values.metadata(number).segments[-1]
        version = newest.first, tuple(int(store) for store in newest.stores)
        if changed.state == meta.OPEN and version not in state.versions:
            state = state._replace(versions=(*state.versions, version))
        return state._replace(catalog=number)

    def _close(self, state: State, adder: Adder) -> State:
        found = self.values.metadata(state.catalog)
        state = self.ended(state)
        try:
            changed = writer._closed_by_writer(found, adder.lac, adder.lac + 1)
        except (LedgerClosed, LedgerFenced):
            return state
        return self._with_catalog(state, changed)

    # -- recoveries

    def _steps_of_recovery(self, state: State, at: int, recovery: Recovery) -> Iterator[Step]:
        link = at + 1
        if recovery.phase == IDLE:
            yield ("recovery", link, "begins"), self._begin(state, at)
            return
        adder = recovery.adder
        assert adder is not None
        found = self.values.metadata(recovery.found)
        targets = tuple(int(store) for store in found.segments[-1].stores)
        if recovery.phase in (FENCING, READING):
            yield from self.steps_of_fences(state, link, recovery.phase, targets)
        if recovery.phase == FENCING:
            told = [p for p, store in enumerate(targets) if state.stores[store].links[link].told != NOTHING]
            if told and meta.covers(found, [*told, *self._gone(state, targets)]):
                yield ("recovery", link, "reads"), self._read(state, at, recovery, found, targets)
            return
        if recovery.phase == READING:
            after = self._decide(state, at, recovery, adder, found, targets)
            if after is not None:
                yield ("recovery", link, "decides"), after
        yield from self._steps_of_adder(state, link, adder)
        if self._joined(state, link, adder):
            window = self._window(state, link, adder)
            window.acknowledge()
            for lac in range(adder.joins[0].lac, window.lac + 1):
                reached = recovery._replace(adder=adder._replace(lac=lac))
                yield ("recovery", link, "has replaced a store"), self._made(state, at, reached)
        if recovery.phase == ENDING:
            window = self._window(state, link, adder)
            window.acknowledge()
            if not window.pending:
                yield (
                    ("recovery", link, "closes at", window.lac),
                    self._end(state, at, recovery, window, found),
                )

    def _gone(self, state: State, targets: tuple[int, ...]) -> list[int]:
        """The positions whose stores were given up."""
        return [p for p, store in enumerate(targets) if self.bounds.gives_up and state.stores[store].lost]

    def _with_recovery(self, state: State, at: int, recovery: Recovery) -> State:
        return state._replace(recoveries=(*state.recoveries[:at], recovery, *state.recoveries[at + 1 :]))

    def _begin(self, state: State, at: int) -> State:
        changed = meta.recovering(self.values.metadata(state.catalog))
        state = self._with_catalog(state, changed)
        if changed.closed:
            return self._with_recovery(state, at, Recovery(DONE))
        found = self.values.metadata(state.catalog)
        view = tuple(int(store) for store in found.segments[-1].stores)
        adder = Adder(view, meta.NONE, 0)
        return self._with_recovery(state, at, Recovery(FENCING, state.catalog, state.catalog, adder))

    def _forget(self, state: State, link: int) -> State:
        """Answers that were received are used up."""
        stores = tuple(
            with_link(store, link, store.links[link]._replace(told=NOTHING, read=NOTHING))
            for store in state.stores
        )
        return state._replace(stores=stores)

    def _read(
        self, state: State, at: int, recovery: Recovery, found: Metadata, targets: tuple[int, ...]
    ) -> State:
        told = [state.stores[store].links[at + 1].told for store in targets]
        start = ends.start(found, [lac for lac in told if lac != NOTHING])
        state = self._forget(state, at + 1)
        adder = Adder(targets, start, start + 1)
        return self._with_recovery(state, at, recovery._replace(phase=READING, start=start, adder=adder))

    def _decide(
        self,
        state: State,
        at: int,
        recovery: Recovery,
        adder: Adder,
        found: Metadata,
        targets: tuple[int, ...],
    ) -> State | None:
        """With the answers so far. Without a decision a recovery fails: then it does nothing more."""
        link = at + 1
        asked = range(adder.next, min(adder.next + BATCH, len(state.stamps) + 1))
        answers = self.values.answers(targets, state.stores, link, asked, state.stamps)
        made = ends.decided(found, asked, answers, self._gone(state, targets))
        if not made:
            return None
        state = self._forget(state, link)
        ending = made[-1] is None
        window = self._window(state, link, adder)
        for entry in made:
            if isinstance(entry, Entry):
                for position in window.add(entry):
                    store = self._store_of(adder, position)
                    state = self._send(state, link, store, 1 << entry.entry)
        adder = adder._replace(next=window.next)
        phase = ENDING if ending else READING
        return self._with_recovery(state, at, recovery._replace(phase=phase, adder=adder))

    def _made(self, state: State, at: int, recovery: Recovery) -> State:
        """The replacement is known to this recovery only."""
        adder = recovery.adder
        assert adder is not None
        now = meta.with_replaced(self.values.metadata(recovery.made), adder.lac, self._replaced(adder))
        state = self._with_recovery(state, at, recovery._replace(made=self.values.number(now)))
        return self._take_over(state, at + 1, adder)

    def _end(self, state: State, at: int, recovery: Recovery, window: Window, found: Metadata) -> State:
        now = self.values.metadata(state.catalog)
        made = self.values.metadata(recovery.made).segments[len(found.segments) - 1 :]
        now = recovery_rules.closed_first(now, window.lac, window.length, made)
        state = self._forget(self._with_catalog(state, now), at + 1)
        return self._with_recovery(state, at, Recovery(DONE))
