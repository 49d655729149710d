"""The steps of a replication worker: it looks at a ledger, copies what a store lacks, and names a new store in place of a lost one."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.handles import ends
from ebla.actors.ledger.handles.checking import LACKING, MISSING, Damage, Findings, all_fragments
from ebla.actors.ledger.handles.registry import StoreInfo
from ebla.actors.ledger.messages import Tail
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared.kept import Mark
from ebla.actors.ledger.store import rules
from ebla.actors.ledger.worker import rules as worker_rules
from tests.ledger.exploring.clients import Clients
from tests.ledger.exploring.network import Step, with_link, with_store
from tests.ledger.exploring.states import DONE, Adder, Link, Recovery, State, Worker
from tests.ledger.exploring.values import bits, numbers

GRACE_S = 1.0  # it never ends: a recovery begins by itself at any time


class Workers(Clients):
    def _steps(self, state: State) -> Iterator[Step]:
        yield from super()._steps(state)
        if not self.bounds.worker:
            return
        if state.worker is None:
            yield from self._steps_of_looking(state)
        elif state.stores[state.worker.new].lost:
            yield ("the worker gives up",), state._replace(worker=None)
        elif not state.worker.wanted & ~state.stores[state.worker.new].held:
            yield ("the worker has copied to", state.worker.new), self._copied(state, state.worker)

    def closed(self, state: State) -> State:
        """A closed ledger as a worker finds it: nobody else does anything about it."""
        stores = tuple(
            store._replace(links=(*(Link() for _ in store.links[:-1]), store.links[-1]))
            for store in state.stores
        )
        writer = Adder(state.writer.view, -1, 0, ended=True)
        recoveries = tuple(Recovery(DONE) for _ in state.recoveries)
        return state._replace(
            stores=stores, writer=writer, recoveries=recoveries, versions=state.versions[-1:], shown=-1
        )

    def _steps_of_looking(self, state: State) -> Iterator[Step]:
        found = self.values.metadata(state.catalog)
        lost = tuple(str(at) for at, store in enumerate(state.stores) if store.lost)
        damaged = self._damaged(state, found)
        if not damaged and found.closed and not self._on_write_quorums(state, found):
            self.broken = "whole: a worker finds nothing to do, and an entry is on too few stores"
            yield ("the worker looks",), state
        running = [StoreInfo(str(at), "") for at, store in enumerate(state.stores) if not store.lost]
        plan = worker_rules.plan(found, Mark(lost, 0, lost), Findings(tuple(damaged), ()), running, GRACE_S)
        for damage in (*plan.fills, *plan.moves):
            for new in self._targets(state, damage, found, damage in plan.fills):
                yield (
                    ("the worker copies from", damage.fragment.first, "on to", new, "for", damage.store),
                    self._copy(state, found, damage, new),
                )

    def _damaged(self, state: State, found: Metadata) -> list[Damage]:
        made = []
        for fragment in all_fragments(found, self._end_of(state, found)):
            for position, name in enumerate(fragment.stores):
                store = state.stores[int(name)]
                entries = bits(meta.entries_of(found, position, fragment.first, fragment.last))
                if store.lost or entries & ~store.held:
                    made.append(Damage(fragment, position, name, MISSING if store.lost else LACKING))
        return made

    def _end_of(self, state: State, found: Metadata) -> int:
        if found.closed:
            return found.last
        newest = found.segments[-1]
        stores = [state.stores[int(name)] for name in newest.stores]
        tails = {
            at: Tail(store.lac, rules.ranges(numbers(store.held)), store.fenced)
            for at, store in enumerate(stores)
            if not store.lost
        }
        known = max(newest.first - 1, *(tail.lac for tail in tails.values()))
        end, certain = ends.durable(found, known, tails)
        return end if certain and not ends.undecided(known, end, tails) else newest.first - 1

    def _on_write_quorums(self, state: State, found: Metadata) -> bool:
        return all(
            state.stores[int(name)].held >> entry & 1
            for entry in range(found.last + 1)
            for name in meta.stores_of(found, entry)
        )

    def _targets(self, state: State, damage: Damage, found: Metadata, fills: bool) -> list[int]:
        if fills:
            return [int(damage.store)]
        running = [StoreInfo(str(at), "") for at, store in enumerate(state.stores) if not store.lost]
        chosen = [worker_rules.target([each], damage.fragment.stores, "-", Random(0)) for each in running]
        return [int(each.uuid) for each in chosen if each is not None]

    def _copy(self, state: State, found: Metadata, damage: Damage, new: int) -> State:
        """The requests for everything that some store has; without the others the worker does not go on."""
        fragment = damage.fragment
        wanted = bits(meta.entries_of(found, damage.position, fragment.first, fragment.last))
        here = 0
        for name in fragment.stores:
            here |= state.stores[int(name)].held
        store = state.stores[new]
        link = len(store.links) - 1
        state = with_store(state, new, with_link(store, link, Link(wanted & here)))
        return state._replace(worker=Worker(fragment.first, int(damage.store), new, wanted))

    def _copied(self, state: State, worker: Worker) -> State:
        state = state._replace(worker=None)
        if worker.new == worker.old:
            return state
        now = self.values.metadata(state.catalog)
        moved = meta.with_moved(now, worker.first, str(worker.old), str(worker.new))
        return state if moved is None else self._with_catalog(state, moved)
