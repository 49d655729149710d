"""An index of a tablet's log, in memory: the term and size of every entry, and where configurations are.

The core decides from this alone and never sees payloads. Terms are kept as runs and sizes as
running sums, so an entry costs eight bytes and any question a binary search. Of the dropped prefix
the last index and term are kept, for log matching.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import msgspec

from ebla.actors.replication.configuration import Configuration

ENTRY_OVERHEAD_BYTES = 48  # an entry's header on the wire: it counts, because empty entries take space too

_decode = msgspec.msgpack.Decoder(Configuration).decode


class LogIndex:
    """Entries `first_index`..`last_index`; `dropped_index`, `dropped_term`: the entry before them.
    `epoch` counts truncations: a durability notice of an older epoch may be about entries that are
    gone."""

    def __init__(self, dropped_index: int = 0, dropped_term: int = 0) -> None:
        assert dropped_index >= 0 and dropped_term >= 0, ("indexes begin at 0", dropped_index, dropped_term)
        self.dropped_index = dropped_index
        self.dropped_term = dropped_term
        self.last_index = dropped_index
        self.epoch = 0
        self.configurations: dict[int, Configuration] = {}  # those in the log, ascending by index
        self._run_first: list[int] = []
        self._run_term: list[int] = []
        self._bytes_dropped = 0
        self._bytes_upto = array("Q")  # per entry: bytes of the log up to and including it, ever

    @property
    def first_index(self) -> int:
        return self.dropped_index + 1

    @property
    def last_term(self) -> int:
        return self._run_term[-1] if self._run_term else self.dropped_term

    def __len__(self) -> int:
        return len(self._bytes_upto)

    def term_at(self, index: int) -> int:
        """The term of an entry, or of the dropped predecessor."""
        held = self.dropped_index, self.last_index
        assert held[0] <= index <= held[1], ("the log knows this entry", index, held)
        if index == self.dropped_index:
            return self.dropped_term
        return self._run_term[bisect_right(self._run_first, index) - 1]

    def append(self, term: int, payload_bytes: int, config_payload: bytes | None = None) -> int:
        """Add one entry and return its index. A CONFIG entry has its payload: its configuration
        counts from now on. Its index is the entry's, unless the master made it (then its ballot)."""
        assert term >= max(1, self.last_term), ("terms never go back", term, self.last_term)
        assert payload_bytes >= 0, ("a payload has a size", payload_bytes)
        before = self._bytes_upto[-1] if self._bytes_upto else self._bytes_dropped
        self._bytes_upto.append(before + payload_bytes + ENTRY_OVERHEAD_BYTES)
        index = self.last_index = self.last_index + 1
        if not self._run_term or self._run_term[-1] != term:
            self._run_first.append(index)
            self._run_term.append(term)
        if config_payload is not None:
            made = _decode(config_payload)
            elected = made.primary is None
            self.configurations[index] = msgspec.structs.replace(made, index=index) if elected else made
        return index

    def truncate(self, start: int) -> None:
        """Remove the entries from `start` on."""
        held = self.first_index, self.last_index
        assert held[0] <= start <= held[1], ("only entries of the log are replaced", start, held)
        del self._bytes_upto[start - self.first_index :]
        self.last_index = start - 1
        while self._run_first and self._run_first[-1] >= start:
            self._run_first.pop()
            self._run_term.pop()
        self.configurations = {at: made for at, made in self.configurations.items() if at < start}
        self.epoch += 1

    def drop_to(self, index: int) -> None:
        """Trim the prefix up to and including `index`; a no-op if that is dropped already."""
        assert index <= self.last_index, ("only entries of the log are dropped", index, self.last_index)
        if index <= self.dropped_index:
            return
        term = self.term_at(index)
        count = index - self.dropped_index
        self._bytes_dropped = self._bytes_upto[count - 1]
        del self._bytes_upto[:count]
        keep = bisect_right(self._run_first, index) - 1
        del self._run_first[:keep], self._run_term[:keep]
        if self._bytes_upto and (len(self._run_first) == 1 or self._run_first[1] > index + 1):
            self._run_first[0] = index + 1
        else:
            del self._run_first[0], self._run_term[0]
        self.configurations = {at: made for at, made in self.configurations.items() if at > index}
        self.dropped_index, self.dropped_term = index, term
        assert len(self) == self.last_index - index, ("each entry has a size", len(self), index)
        assert len(self._run_first) == len(self._run_term), ("each run has a term", self._run_first)

    def size_bytes(self, first: int, last: int) -> int:
        """Bytes of the entries first..last, with their headers."""
        held = self.first_index, self.last_index
        assert held[0] <= first <= last <= held[1], ("the log has these entries", first, last, held)
        return self._upto(last) - self._upto(first - 1)

    def last_within(self, first: int, bytes_max: int) -> int:
        """The greatest index such that first..index is at most `bytes_max`; `first` itself if that
        alone is more."""
        held = self.first_index, self.last_index
        assert held[0] <= first <= held[1], ("the log has this entry", first, held)
        end = bisect_right(self._bytes_upto, self._upto(first - 1) + bytes_max, lo=first - self.first_index)
        return max(first, self.dropped_index + end)

    def latest_configuration(self, upto: int) -> Configuration | None:
        """The newest configuration in the log at or below index `upto`."""
        for at, made in reversed(self.configurations.items()):
            if at <= upto:
                return made
        return None

    def _upto(self, index: int) -> int:
        return (
            self._bytes_dropped if index == self.dropped_index else self._bytes_upto[index - self.first_index]
        )
