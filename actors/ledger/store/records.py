"""The records of a ledger store, in one LMDB environment, `ledgers`.

    heads     ledger          the promises of this store about a ledger: see Head; sealed with a checksum
              "forgotten"     the greatest ledger whose head was forgotten: see forgotten.py; sealed, too
    arrivals                  entries that are not in `entries` yet: see arrivals.py
    entries   ledger, entry   lac, length, crc, data; the CRC is bound to the ledger and the entry

A head outlives its ledger: a late entry of a writer must not bring the ledger back. Of the oldest ones a number is enough.
"""

from __future__ import annotations

import struct

import msgspec

from ebla.actors.ledger.messages import Entry
from ebla.storage.directories import records
from ebla.storage.environment import Environment, Item
from ebla.storage.errors import Corruption

PATH = "ledgers"
FORMATTED = "ledgers-formatted"  # exists once PATH does: then a missing PATH is damage, not a new store
HEADS, ENTRIES = "heads", "entries"
DATABASES = (HEADS, "arrivals", ENTRIES)
FORGOTTEN = b"forgotten"
_KEY = struct.Struct(">QQ")
_LEDGER = struct.Struct(">Q")
_BODY = struct.Struct(">qQI")


class Head(msgspec.Struct, frozen=True, array_like=True):
    """`fenced`: the writer's entries are refused. `deleted`: all entries are."""

    token: str
    fenced: bool = False
    deleted: bool = False


_decode = msgspec.msgpack.Decoder(Head).decode


def head_key(ledger: int) -> bytes:
    return _LEDGER.pack(ledger)


def head_item(ledger: int, head: Head) -> Item:
    key = head_key(ledger)
    return key, records.seal(key, msgspec.msgpack.encode(head))


def head_of(item: Item, path: str) -> tuple[int, Head]:
    """Raises Corruption."""
    key, data = item
    try:
        (ledger,) = _LEDGER.unpack(key)
        return ledger, _decode(records.unseal(key, data, path))
    except (struct.error, msgspec.MsgspecError) as error:
        raise Corruption(
            f"the head of a ledger under key {key.hex()} cannot be read: {error}", path=path
        ) from error


def heads_of(environment: Environment) -> dict[int, Head]:
    """Raises Corruption."""
    items = environment.items(HEADS)
    return dict(head_of(item, environment.path) for item in items if item[0] != FORGOTTEN)


def forgotten_item(greatest: int) -> Item:
    return FORGOTTEN, records.seal(FORGOTTEN, _LEDGER.pack(greatest))


def forgotten_of(data: bytes | None, path: str) -> int:
    """-1: no head was forgotten. Raises Corruption."""
    return -1 if data is None else int.from_bytes(records.unseal(FORGOTTEN, data, path), "big")


def key_of(ledger: int, entry: int) -> bytes:
    return _KEY.pack(ledger, entry)


def entry_of(key: bytes) -> int:
    """The entry's number."""
    number: int = _KEY.unpack(key)[1]
    return number


def entry_item(ledger: int, entry: Entry) -> Item:
    return _KEY.pack(ledger, entry.entry), _BODY.pack(entry.lac, entry.length, entry.crc) + entry.data


def read_entry(ledger: int, entry: int, value: bytes) -> Entry | None:
    """None if the value fails its checksum."""
    if len(value) < _BODY.size:
        return None
    lac, length, crc = _BODY.unpack_from(value)
    found = Entry(entry, lac, length, crc, value[_BODY.size :])
    return found if found.sound(ledger) else None


def bounds(ledger: int, after: int = -1) -> tuple[bytes, bytes]:
    """The keys of the ledger's entries after this one: start and stop."""
    return _KEY.pack(ledger, after + 1), _LEDGER.pack(ledger + 1) if ledger < 2**64 - 1 else b"\xff" * 16
