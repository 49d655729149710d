"""Random changes of members, deletions and damage of replicas, crashes and cuts, while clients write.

Act one draws faults by seed that leave a majority of the tablet's voters with all that they acknowledged. Act two heals
everything, and the leader alone must bring every member back. Every member then has every acknowledged row, and no term
had two leaders.
"""

from __future__ import annotations

import contextlib
import itertools
from random import Random

import pytest

from ebla.actors import messages as m
from ebla.actors.messages.repair import ADD, MODIFY, REMOVE
from ebla.actors.replication.configuration import (
    NON_VOTER,
    VOTER,
    Configuration,
    Peer,
)
from ebla.actors.tablet.engine.replica import Replica
from ebla.storage.errors import Corruption, EblaError
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, TABLET, Group, address, row, simulated

EVERYWHERE = (*HOSTS, "host-d", "host-e")
ACTS = 24


class Churn:
    def __init__(self, group: Group, seed: int) -> None:
        self.group = group
        self.random = Random(seed)
        self.acknowledged: dict[int, str] = {}
        self.leaders: dict[int, str] = {}
        self.done: list[str] = []
        self.writing = True
        self.uuids = {host: group.uuid(host) for host in EVERYWHERE}

    # -- views

    def hosts_up(self) -> list[str]:
        return [h for h in EVERYWHERE if self.group.alive(h) and self.group.server(h).running]

    def replicas(self) -> dict[str, Replica]:
        held = {host: self.group.server(host).replicas.get(TABLET) for host in self.hosts_up()}
        return {host: replica for host, replica in held.items() if replica is not None}

    def leader(self) -> tuple[str, Replica] | None:
        """Return the leader of the highest term."""
        led = [(host, replica) for host, replica in self.replicas().items() if replica.leads]
        for host, replica in led:
            assert self.leaders.setdefault(replica.core.term, host) == host, "two leaders in one term"
        return max(led, key=lambda found: found[1].core.term, default=None)

    def spared(self, host: str) -> bool:
        """Return whether a majority of voters has its data without this host."""
        found = self.leader()
        if found is None:
            return False
        replicas = self.replicas()
        held = {
            replica.core.me: None
            for other, replica in replicas.items()
            if other != host and replica.state == m.RUNNING and not found[1].core.needs_copy(replica.core.me)
        }
        for configuration in (found[1].core.configuration, found[1].core.committed_configuration):
            if sum(peer.uuid in held for peer in configuration.voters()) < configuration.majority:
                return False
        return True

    # -- clients

    async def write(self) -> None:
        """Write one row for each key, and note the acknowledged ones."""
        for key in itertools.count(1):
            if not self.writing:
                return
            await self.group.sleep(self.random.uniform(0.0, 0.1))
            found = self.leader()
            if found is None:
                continue
            value = f"{key}"
            batch = self.group.batch(m.UPSERT, [row(key, value)], self.group.next_sequence())
            request = m.WriteRequest((m.TabletWrite(TABLET, batch),), 1.0)
            with contextlib.suppress(EblaError):
                reply = await self.group.ask(found[0], "write", request, m.WriteReply, 2.0)
                if reply.errors[0] is None:
                    self.acknowledged[key] = value

    # -- act one

    async def act(self) -> None:
        verb = self.random.choice(
            [self.change] * 4
            + [self.delete, self.damage, self.crash, self.restart, self.restart]
            + [self.cut, self.heal, self.heal, self.step_down, self.trim]
        )
        await verb()
        await self.group.sleep(self.random.choice([0.02, 0.3, 1.0, 3.0]))

    async def change(self) -> None:
        found = self.leader()
        if found is None:
            return
        host, replica = found
        configuration = replica.core.committed_configuration
        other = self.random.choice(EVERYWHERE)
        uuid = self.uuids[other]
        present = configuration.peer(uuid)
        plain = Peer(uuid, address(other))
        if present is None:
            change = m.MemberChange(ADD, Peer(uuid, address(other), NON_VOTER, promote=True))
        elif present.member == VOTER and len(configuration.voters()) <= 3:
            change = m.MemberChange(MODIFY, Peer(uuid, address(other), replace=not present.replace))
        else:
            change = m.MemberChange(REMOVE, plain)
        server = self.uuids[host]
        request = m.ChangeMembersRequest(server, TABLET, (change,), configuration.index, 1.0)
        with contextlib.suppress(EblaError):
            reply = await self.group.ask(host, "change_members", request, m.MembersReply, 2.0)
            self.done.append(change.kind)
            if change.kind == REMOVE:
                await self.evict(other, reply.configuration)

    async def evict(self, host: str, configuration: Configuration) -> None:
        """Delete the replica of a removed member, as the master does."""
        if not self.group.alive(host):
            return
        uuid = self.uuids[host]
        request = m.DeleteTabletRequest(uuid, TABLET, "evicted", True, configuration.index)
        with contextlib.suppress(EblaError):
            await self.group.ask(host, "delete_tablet", request, m.Empty, 2.0)

    async def delete(self) -> None:
        host = self.random.choice(EVERYWHERE)
        if host not in self.replicas() or not self.spared(host):
            return
        server = self.group.server(host)
        with contextlib.suppress(EblaError):
            async with server.lifecycle.transition(TABLET):
                if TABLET in server.replicas:
                    await server.deletion.entomb(TABLET, "churn")
                    self.done.append("delete")

    async def damage(self) -> None:
        host = self.random.choice(EVERYWHERE)
        replica = self.replicas().get(host)
        if replica is not None and self.spared(host):
            replica.fail(Corruption("churn"))
            self.done.append("damage")

    async def crash(self) -> None:
        host = self.random.choice(EVERYWHERE)
        if len(self.hosts_up()) > 3 and host in self.hosts_up():
            self.group.crash(host)
            self.done.append("crash")

    async def restart(self) -> None:
        for host in EVERYWHERE:
            if not self.group.alive(host):
                await self.group.restart(host)

    async def cut(self) -> None:
        one, other = self.random.sample(EVERYWHERE, 2)
        self.group.cluster.network.cut(address(one), address(other), one_way=self.random.random() < 0.3)

    async def heal(self) -> None:
        self.group.heal()

    async def step_down(self) -> None:
        found = self.leader()
        if found is not None:
            with contextlib.suppress(EblaError):
                await self.group.step_down(found[0])

    async def trim(self) -> None:
        """Flush all replicas, so that logs are trimmed and servers that were down must be copied to."""
        for host in list(self.replicas()):
            with contextlib.suppress(EblaError):
                await self.group.ask(host, "flush", m.FlushRequest(TABLET), m.FlushReply, 2.0)

    # -- act two

    def well(self) -> bool:
        found = self.leader()
        if found is None:
            return False
        core = found[1].core
        configuration, replicas = core.committed_configuration, self.replicas()
        members = [replica for replica in replicas.values() if configuration.peer(replica.core.me)]
        return (
            core.configuration == configuration
            and len(members) == len(configuration.peers)
            and all(peer.kind == VOTER for peer in configuration.peers)
            and set(found[1].health.values()) <= {"healthy"}
            and all(r.state == m.RUNNING and r.store.applied == found[1].store.applied for r in members)
            and core.commit_index == core.last_index
        )

    async def end(self) -> None:
        await self.heal()
        await self.restart()
        await self.group.sleep(2.0)
        self.writing = False
        await until(self.group, self.well, "every member is back", 240.0)
        found = self.leader()
        assert found is not None
        uuids = [peer.uuid for peer in found[1].core.committed_configuration.peers]
        hosts = [host for host in EVERYWHERE if self.uuids[host] in uuids]
        for host in hosts:
            table = (await self.group.scan(host)).to_pylist()
            values = {entry["k"]: entry["v"] for entry in table}
            lost = {key: value for key, value in self.acknowledged.items() if values.get(key) != value}
            assert lost == {}, (host, len(lost), self.done)


@pytest.mark.parametrize("seed", range(6))
@simulated(log_retained_entries_max=20, follower_failed_s=10.0)
async def test_churn_loses_no_row_and_every_member_is_brought_back(group: Group, seed: int) -> None:
    for host in EVERYWHERE[len(HOSTS) :]:
        await group.cluster.start(address(host), group.make(host))
    await group.leader()
    churn = Churn(group, seed)
    group.client.spawn(churn.write(), "writer")
    for _ in range(ACTS):
        await churn.act()
    await churn.end()
    assert len(churn.acknowledged) > 50, "the test must not pass by doing nothing"
    assert len(churn.done) >= 3, churn.done
