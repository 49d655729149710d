"""The data of deleted replicas, on all servers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ebla.actors.messages import Empty, QuarantineEntries, QuarantineEntry, QuarantineRequest, ServerState
from ebla.actors.replication.configuration import PREFIX_MIN
from ebla.health.survey import ask_each, gathered
from ebla.health.verdicts import Unanswered, answered, silent
from ebla.operate.cluster import Cluster
from ebla.operate.naming import Refused
from ebla.storage.errors import did_you_mean
from ebla.wording import host_of, short

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

    def ids(self) -> dict[str, str]:
        """A short id for each name: the beginning of the tablet's id, and the end of the time, as long as they differ."""
        names = {each.entry.name: each.entry.name.rpartition("-") for each in self.held}
        for digits in (4, 6, 8):
            found = {name: f"{short(tablet)}-{time[-digits:]}" for name, (tablet, _, time) in names.items()}
            if len(set(found.values())) == len(found):
                return found
        return {name: name for name in names}

    def named(self, wanted: Sequence[str]) -> list[Held]:
        """The entries with these names, ids or beginnings of names, on all servers that have one of the name."""
        ids = self.ids()
        meant = {self._named(word, ids) for word in wanted}
        return [each for each in self.held if each.entry.name in meant]

    def _named(self, word: str, ids: dict[str, str]) -> str:
        found = [name for name, id in ids.items() if word in (name, id)]
        if not found and len(word) >= PREFIX_MIN:
            found = [name for name, id in ids.items() if name.startswith(word) or id.startswith(word)]
        if len(found) > 1:
            several = " or ".join(ids[name] for name in found)
            raise Refused(f"{word!r} may mean {several}", hint="give the whole id")
        if not found:
            silent = f"; {', '.join(map(host_of, self.silent))} gave no answer" if self.silent else ""
            raise Refused(
                f"quarantine has no entry {word!r}{did_you_mean(word, list(ids.values()))}",
                hint=f"`ebla tablet quarantine list` shows the ids{silent}",
            )
        return found[0]


class Kept(msgspec.Struct, frozen=True):
    """The space of the quarantine on all servers that answered. `oldest_us`: the time of its oldest entry."""

    bytes: int
    entries: int
    oldest_us: int | None


async def kept(cluster: Cluster) -> Kept:
    """Ask the servers that Ray knows, each once."""
    asked = ask_each(cluster.network, cluster.slots, "quarantine_list", QuarantineEntries, SERVER_S)
    held = [entry for listed in answered(await asked).values() for entry in listed.entries]
    oldest = min((entry.at_us for entry in held), default=None)
    return Kept(sum(entry.bytes for entry in held), len(held), oldest)


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

    answers = dict(zip(addresses, await gathered([one(each) for each in addresses]), strict=True))
    held = [each for some in answered(answers).values() for each in some]
    return Found(tuple(sorted(held, key=lambda each: (each.entry.at_us, each.entry.name))), silent(answers))


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
