"""The data of deleted replicas, on all servers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ebla.actors.messages import Empty, QuarantineEntries, QuarantineEntry, QuarantineRequest, ServerState
from ebla.health.survey import gathered
from ebla.health.verdicts import Unanswered
from ebla.operate.cluster import Cluster
from ebla.operate.naming import Refused
from ebla.storage.errors import did_you_mean
from ebla.wording import host_of

SERVER_S = 5.0
RESTORE_S = 3600.0


class Held(msgspec.Struct, frozen=True):
    """An entry, and the server that has it."""

    address: str
    uuid: str
    entry: QuarantineEntry


class Found(msgspec.Struct, frozen=True):
    """All entries. `silent`: servers that gave no answer, and why."""

    held: tuple[Held, ...]
    silent: dict[str, str]

    def named(self, wanted: Sequence[str]) -> list[Held]:
        """The entries with these names, on all servers that have one of the name."""
        there = [each.entry.name for each in self.held]
        for name in wanted:
            if name not in there:
                silent = f"; {', '.join(map(host_of, self.silent))} gave no answer" if self.silent else ""
                raise Refused(
                    f"quarantine has no entry {name!r}{did_you_mean(name, there)}",
                    hint=f"`ebla tablet quarantine list` shows the names{silent}",
                )
        return [each for each in self.held if each.entry.name in wanted]


async def entries(cluster: Cluster) -> Found:
    addresses = await cluster.servers()

    async def one(address: str) -> list[Held] | Unanswered:
        listed = await cluster.ask(address, "quarantine_list", Empty(), QuarantineEntries, SERVER_S)
        if isinstance(listed, Unanswered):
            return listed
        state = await cluster.ask(address, "status", Empty(), ServerState, SERVER_S)
        if isinstance(state, Unanswered):
            return state
        return [Held(address, state.instance.uuid, entry) for entry in listed.entries]

    held: list[Held] = []
    silent: dict[str, str] = {}
    for address, answer in zip(addresses, await gathered([one(each) for each in addresses]), strict=True):
        if isinstance(answer, Unanswered):
            silent[address] = answer.message
        else:
            held += answer
    return Found(tuple(sorted(held, key=lambda each: (each.entry.at_us, each.entry.name))), silent)


async def restore(cluster: Cluster, names: Sequence[str], directory: str) -> list[Held]:
    """Have the entries written as files below `directory` on their servers' hosts."""
    chosen = (await entries(cluster)).named(names)
    for each in chosen:
        request = QuarantineRequest(each.uuid, (each.entry.name,), directory)
        await cluster.call(each.address, "quarantine_restore", request, Empty, RESTORE_S)
    return chosen


async def purge(cluster: Cluster, chosen: Sequence[Held]) -> None:
    for address, uuid in dict.fromkeys((each.address, each.uuid) for each in chosen):
        names = tuple(each.entry.name for each in chosen if each.address == address)
        await cluster.call(address, "quarantine_purge", QuarantineRequest(uuid, names), Empty, RESTORE_S)
