"""Carries out a plan of faults on a simulated deployment, and undoes each of them at its end, except for jumps of wall clocks. If
two faults of a kind overlap on one host, the last one to end undoes both; the greater amount counts until then (for clocks, the
later rate).

One method per kind of chaos/plans.py. A fault without a target (the host is down already) does nothing; `effects` counts faults
that had an effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random

from msgspec.structs import replace

from ebla.actors import incarnations
from ebla.actors.fault_points import GROWTH_POINTS
from ebla.actors.ledger.store.store import LedgerStore
from ebla.actors.tablet.server import TabletServer
from ebla.chaos.plans import MASTER, OVERTIME_S, Fault, Plan
from ebla.chaos.simulation import damage
from ebla.chaos.simulation.deployment import Deployment, address_of, host_of
from ebla.chaos.simulation.medium import COMMIT_S, DurableState
from ebla.chaos.simulation.points import Points
from ebla.chaos.simulation.restores import Restores
from ebla.options import MASTER as MASTER_ADDRESS
from ebla.storage.errors import Corruption, Damaged, DirectoryLocked, DiskFailed, DiskFull, OldCopy
from ebla.storage.tablets.tablet_store import path_of

COPY_S = 3.0  # how old an old version is
BELIEVED_DEAD_S = 2.0  # after which a paused node is superseded
ZOMBIE_S = 1.0  # that a superseded node runs beside its successor
ARMED_S_MAX = 8.0  # that a crash waits for its node at a fault point; it also stops waiting when act one ends
RECOGNISED_S = 5.0  # within which a server on an old copy ends, unless another fault isolates it
MIDWAY_S_MAX = 0.5  # that a crash waits for the remaining steps of its node
RETURNS_S = (0.0, 0.05, 0.5)  # at most between the starts of two hosts after a blackout
POLL_S = 0.1
HANGING = 0.4  # of a server's data disks
GROW_EVERY_S = 0.03  # between two times that a map grows


class Nemesis(Restores):
    def __init__(self, deployment: Deployment, plan: Plan, points: Points) -> None:
        super().__init__(deployment)
        self.cluster = deployment.cluster
        self.plan = plan
        self.points = points
        self._zombies: dict[str, None] = {}
        self._damaged: dict[str, None] = {}  # addresses with damaged directories
        self._rotten: list[DurableState] = []  # directories, also after they were replaced
        self._old_copies: dict[str, DurableState] = {}
        self._ends_s = 0.0

    def tolerates(self, address: str, error: BaseException, directory: DurableState) -> bool:
        """Whether the faults so far explain that a role ends with this error. A superseded role may still run on a `directory` that
        was replaced since."""
        if isinstance(error, DirectoryLocked):
            return address in self._zombies
        if isinstance(error, DiskFull):
            # Only a start on a full disk may fail; Ray repeats it. A running role must tolerate a full disk, and so must the start
            # of a tablet server that was there before.
            new = self.cluster.state(address).uuid is None or address not in self.deployment.servers
            return self.cluster.state(address).full and not self.cluster.came_up(address) and new
        if isinstance(error, DiskFailed):
            return directory.failed is not None
        if address == MASTER_ADDRESS and self._is_old(directory, error):
            return True
        if isinstance(error, OldCopy):
            return address in self._old_copies or self.gives_up(address, error)
        if self.lost_data(address, error):
            return True
        damaged = address in self._damaged or directory in self._rotten
        return isinstance(error, Corruption | Damaged) and damaged

    async def run(self, duration_s: float) -> None:
        """Carry out act one, of this length or until its last fault has ended. Returns when all faults are undone."""
        began = self.cluster.loop.time()
        last_s = max((fault.at_s + fault.for_s for fault in self.plan.faults), default=0.0)
        self._ends_s = began + max(duration_s, last_s - OVERTIME_S)
        await asyncio.gather(*(self._at(began, fault) for fault in self.plan.faults))

    async def _at(self, began: float, fault: Fault) -> None:
        await asyncio.sleep(max(0.0, began + fault.at_s - self.cluster.loop.time()))
        self.cluster.loop.trace("fault", fault)
        self.begun[fault.kind] += 1
        await getattr(self, f"_{fault.kind}")(self._found(fault))

    def _found(self, fault: Fault) -> Fault:
        """The fault on fixed hosts: `master` becomes the master that is active now."""
        return replace(fault, where=tuple(self._found_host(fault, host) for host in fault.where))

    def _found_host(self, fault: Fault, host: str) -> str:
        """The journal's only node is in the master's process, and so is the one that grows it."""
        of_node = fault.point.startswith("journal.")
        if of_node and (fault.point in GROWTH_POINTS or not self.deployment.shape.journal_hosts()):
            return MASTER
        several = len(self.deployment.masters) > 1
        return host_of(self.deployment.master_address()) if host == MASTER and several else host

    async def heal(self) -> None:
        """Undo all faults before act two. A server with a useless directory gets an empty one, as an operator would do."""
        self.network.heal()
        self.deployment.release_all()
        for address, old in self._old_copies.items():
            await self._recognised(address, old)
            assert old.given_up or not self._serves_from(address, old), f"{address} serves from an old copy"
        for host in (*self.deployment.hosts, *self.deployment.shape.store_hosts()):
            address = address_of(host)
            useless = address in self._damaged and not self._serves(address)
            if useless and address not in self.deployment.gone:
                await self._replace(host)

    def _serves_from(self, address: str, state: DurableState) -> bool:
        return self.cluster.state(address) is state and self._serves(address)

    def _damages(self, address: str) -> None:
        self._damaged[address] = None
        self.deployment.note_hurt(address)

    def _serves(self, address: str) -> bool:
        role = self.cluster.role(address) if self.cluster.alive(address) else None
        if isinstance(role, LedgerStore):
            return role._running
        return isinstance(role, TabletServer) and role.running

    # -- processes

    def _hit(self, fault: Fault) -> tuple[str, str, bool]:
        """The host, its address, and whether its role is alive."""
        host = fault.where[0]
        address = address_of(host)
        hit = self.cluster.alive(address)
        self.effects[fault.kind] += hit
        return host, address, hit

    async def _crash(self, fault: Fault) -> None:
        host, _, _ = self._hit(fault)
        with self.deployment.down(host):
            await asyncio.sleep(fault.for_s)

    async def _crash_midway(self, fault: Fault) -> None:
        """A node that does not take the step for a while crashes between two steps."""
        host, address = fault.where[0], address_of(fault.where[0])
        died = asyncio.get_running_loop().create_future()

        def crash() -> None:
            if not died.done():
                self.effects[fault.kind] += 1
                self.deployment.hold_down(host)
                died.set_result(None)

        if not self.cluster.call_after(address, int(fault.amount), crash):
            return
        await asyncio.wait([died], timeout=MIDWAY_S_MAX)
        crash()
        await asyncio.sleep(fault.for_s)
        self.deployment.release(host)

    async def _crash_point(self, fault: Fault) -> None:
        host = fault.where[0]
        address = address_of(host)
        passed = asyncio.get_running_loop().create_future()

        def crash() -> None:
            self.effects[fault.kind] += 1
            self.deployment.hold_down(host)
            passed.set_result(None)

        self.points.arm(address, fault.point, crash)
        await asyncio.wait([passed], timeout=min(ARMED_S_MAX, self._left_s()))
        self.points.disarm(address, fault.point)
        if passed.done():
            await asyncio.sleep(min(fault.for_s, self._left_s() + OVERTIME_S))
            self.deployment.release(host)

    def _left_s(self) -> float:
        """The rest of act one."""
        return max(0.0, self._ends_s - self.cluster.loop.time())

    _node_loss = _crash  # a simulated host is one node with one role, which keeps its data

    async def _client_crash(self, fault: Fault) -> None:
        """A client crashes with its requests under way; another one replaces it."""
        alive = [address for address in self.deployment.clients if self.cluster.alive(address)]
        if alive:
            victim = self.deployment.random.choice(alive)
            self.effects[fault.kind] += 1
            self.cluster.crash(victim)
            await asyncio.sleep(fault.for_s)
            self.deployment.clients[victim].start_successor()

    async def _client_pause(self, fault: Fault) -> None:
        alive = [address for address in self.deployment.clients if self.cluster.alive(address)]
        if alive:
            self.effects[fault.kind] += 1
            with self._paused(self.deployment.random.choice(alive)):
                await asyncio.sleep(fault.for_s)

    async def _blackout(self, fault: Fault) -> None:
        """Half of them spare the masters and the journal. The hosts start again one after another."""
        self.effects[fault.kind] += 1
        chance = self.cluster.loop.derive("blackout", fault.at_s)
        hosts = list(chance.choice((self.deployment.hosts, self.deployment.all_hosts)))
        between_s = chance.choice(RETURNS_S)
        chance.shuffle(hosts)
        for host in hosts:
            self.deployment.hold_down(host)
        await asyncio.sleep(fault.for_s)
        for host in hosts:
            self.deployment.release(host)
            await asyncio.sleep(chance.uniform(0.0, between_s))

    async def _stop(self, fault: Fault) -> None:
        host = fault.where[0]
        address = address_of(host)
        self.effects[fault.kind] += self.cluster.alive(address) and not self.cluster.paused(address)
        await self.deployment.stop_and_hold_down(host)
        await asyncio.sleep(fault.for_s)
        self.deployment.release(host)

    async def _pause(self, fault: Fault) -> None:
        _, address, hit = self._hit(fault)
        if hit:
            with self._paused(address):
                await asyncio.sleep(fault.for_s)

    _node_pause = _pause

    @contextmanager
    def _paused(self, address: str) -> Iterator[None]:
        """Pause the present process; one that is started meanwhile runs."""
        self.cluster.pause(address)
        with self._switched("pause", address, lambda: None, partial(self.cluster.resume, address)):
            yield

    async def _zombie(self, fault: Fault) -> None:
        _, address, hit = self._hit(fault)
        if not hit or address in self._zombies:
            return
        with self._paused(address):
            await asyncio.sleep(BELIEVED_DEAD_S)
            if not self.cluster.paused(address):
                return
            self._zombies[address] = None
            self.cluster.supersede(address)
            await asyncio.sleep(fault.for_s)
        await asyncio.sleep(ZOMBIE_S)
        self.cluster.end_zombie(address)
        del self._zombies[address]

    # -- disks

    async def _slow_disk(self, fault: Fault) -> None:
        await self._slow(fault, fault.where)

    async def _slow_disks(self, fault: Fault) -> None:
        await self._slow(fault, self.deployment.hosts)

    async def _slow(self, fault: Fault, hosts: tuple[str, ...]) -> None:
        states = {host: self.cluster.state(address_of(host)) for host in hosts}
        with ExitStack() as held:
            held.enter_context(
                self._seen(fault, lambda: sum(state.seen["slow"] for state in states.values()))
            )
            for host, state in states.items():
                held.enter_context(self._held("slow", host, fault.amount, partial(_set_pace, state)))
            await asyncio.sleep(fault.for_s)

    async def _hang_disk(self, fault: Fault) -> None:
        state = self.cluster.state(address_of(fault.where[0]))
        with self._seen(fault, lambda: state.seen["hanging"]):
            state.hang(fault.for_s)
            await asyncio.sleep(fault.for_s)

    async def _full_disk(self, fault: Fault) -> None:
        state = self.cluster.state(address_of(fault.where[0]))
        with (
            self._seen(fault, lambda: state.seen["full"]),
            self._switched("full", fault.where[0], state.fill, state.free),
        ):
            await asyncio.sleep(fault.for_s)

    async def _grow_map(self, fault: Fault) -> None:
        """LMDB's maps must grow repeatedly, which closes open snapshots."""
        state = self.cluster.state(address_of(fault.where[0]))
        expired = 0
        until = self.cluster.loop.time() + fault.for_s
        with self._seen(fault, lambda: expired):
            while self.cluster.loop.time() < until:
                expired += 0 if state.holder is None else state.holder.expire_snapshots()
                await asyncio.sleep(GROW_EVERY_S)

    async def _hang_data(self, fault: Fault) -> None:
        state, chance = self.cluster.state(address_of(fault.where[0])), Random(int(fault.amount))
        rows = [path for path in state.environments if path.startswith(path_of(""))]
        with ExitStack() as held:
            held.enter_context(self._seen(fault, lambda: state.seen["hung"]))
            for path in rows:
                if chance.random() < HANGING:
                    acts = partial(state.hang_data, path), partial(state.unhang_data, path)
                    held.enter_context(self._switched("hang", f"{fault.where[0]} {path}", *acts))
            await asyncio.sleep(fault.for_s)

    async def _fail_sync(self, fault: Fault) -> None:
        host = fault.where[0]
        address = address_of(host)
        if not self.cluster.alive(address) or not self._may_hit(host, "lost"):
            return
        self._damages(address)
        state = self.cluster.state(address)
        with self._seen(fault, lambda: state.seen["failed"]):
            state.fail_next_commit()
            await asyncio.sleep(fault.for_s)
        await self._replace(host)

    async def _lose_disk(self, fault: Fault) -> None:
        if not self._may_hit(fault.where[0], "lost"):
            return
        host, address, _ = self._hit(fault)
        self._damages(address)
        with self.deployment.down(host):
            await asyncio.sleep(fault.for_s)
        await self._replace(host)

    async def _old_copy(self, fault: Fault) -> None:
        """An operator restores a backup. The promise holds only for copies that are older than the state that other roles know, so
        other copies are not restored. The server must end, and its directory is set aside."""
        host = fault.where[0]
        address = address_of(host)
        old = self.cluster.state(address).copy()
        await asyncio.sleep(fault.for_s)
        if not self._surely_old(address, old):
            return
        self.effects[fault.kind] += 1
        self._damages(address)
        self._old_copies[address] = old
        with self.deployment.down(host):
            self.cluster.put_disk(address, old)
        await self._recognised(address, old)
        if self.cluster.state(address) is old and old.given_up:
            await self._replace(host)

    def _surely_old(self, address: str, old: DurableState) -> bool:
        """Whether all other roles have on disk that the server is further than the copy can get by a few starts."""
        others = [MASTER_ADDRESS, *map(address_of, self.deployment.hosts)]
        states = [self.cluster.state(other) for other in others if other != address]
        return old.uuid is not None and all(
            damage.known_seqno(state, old.uuid) >= old.seqno + incarnations.RAISED_BY for state in states
        )

    async def _recognised(self, address: str, old: DurableState) -> None:
        until = self.cluster.loop.time() + RECOGNISED_S
        while self.cluster.state(address) is old and not old.given_up and self.cluster.loop.time() < until:
            await asyncio.sleep(POLL_S)

    async def _replace(self, host: str) -> None:
        """Set the directory aside; the role starts as a new one. A journal node must rejoin its journal."""
        self._damages(address_of(host))
        with self.deployment.down(host):
            self.cluster.put_disk(address_of(host), DurableState())
            del self._damaged[address_of(host)]
        if address_of(host) in self.deployment.journals:
            await self.deployment.rejoin(address_of(host))

    async def _rot(self, fault: Fault) -> None:
        self._damage(fault, damage.rot)

    async def _misdirect(self, fault: Fault) -> None:
        self._damage(fault, damage.misdirect)

    async def _stale(self, fault: Fault) -> None:
        """A record has its content of a while ago; see the budget in docs/testing.md about votes and rows."""
        old = self._victim(fault)[1].copy()
        await asyncio.sleep(COPY_S)
        address, state, chance = self._victim(fault)
        self._has_damaged(fault, address, state, damage.make_stale(state, old, chance))

    def _damage(self, fault: Fault, harm: Callable[[DurableState, Random], str]) -> None:
        address, state, chance = self._victim(fault)
        if self._may_hit(fault.where[0], "damaged"):
            self._has_damaged(fault, address, state, harm(state, chance))

    def _victim(self, fault: Fault) -> tuple[str, DurableState, Random]:
        address = address_of(fault.where[0])
        return address, self.cluster.state(address), Random(int(fault.amount))

    def _has_damaged(self, fault: Fault, address: str, state: DurableState, path: str) -> None:
        if path:
            self._damages(address)
            self._rotten.append(state)
            self.effects[fault.kind] += 1

    # -- clocks

    async def _clock_rate(self, fault: Fault) -> None:
        address, loop = address_of(fault.where[0]), self.cluster.loop
        clock = self.cluster.clock(address)
        with (
            self._seen(fault, lambda: self._lived_by(address, clock.monotonic() - loop.time())),
            self._held(
                "rate", address, fault.amount, lambda rates: clock.set_rate(rates[-1] if rates else 1.0)
            ),
        ):
            await asyncio.sleep(fault.for_s)

    async def _clock_jump(self, fault: Fault) -> None:
        address, loop = address_of(fault.where[0]), self.cluster.loop
        clock = self.cluster.clock(address)
        with self._seen(fault, lambda: self._lived_by(address, clock.wall_us() / 1e6 - loop.time())):
            clock.wall_offset_us += int(fault.amount * 1e6)
        await asyncio.sleep(fault.for_s)

    def _lived_by(self, address: str, ahead_s: float) -> float:
        """How far the clock is ahead, if its node is alive."""
        return round(ahead_s, 6) if self.cluster.alive(address) else 0.0


def _set_pace(state: DurableState, amounts: list[float]) -> None:
    state.commit_s = (COMMIT_S[0], max(amounts)) if amounts else COMMIT_S
