"""Replaces the C functions that a loaded extension module calls.

An extension calls the C library through a table of addresses in its own memory, one slot per function. The dynamic relocations in
its file give the place of each slot, so a running process can exchange the addresses: from then on that module alone calls the new
function. This needs no compiler, tracer or privilege, and covers every thread. It works for 64-bit little-endian ELF on x86-64
and AArch64; elsewhere it raises CannotRecord.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ebla.storage.errors import EblaError

# e_machine: (jump slot, global data), the two kinds of relocation that fill in a function's address
RELOCATIONS = {62: (7, 6), 183: (1026, 1025)}
_LOAD, _DYNAMIC = 1, 2
_STRINGS, _SYMBOLS, _RELA, _RELA_BYTES, _JUMPS, _JUMPS_BYTES = 5, 6, 7, 8, 23, 2
_RELA_ENTRY = struct.Struct("<QQq")
_SYMBOL_BYTES = 24
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

_libc = ctypes.CDLL(None, use_errno=True)


class CannotRecord(EblaError):
    """This machine cannot record writes. The message says why."""


class Slots:
    """The slots of the module in `file`, which this process has loaded."""

    def __init__(self, file: Path) -> None:
        if sys.platform != "linux":
            raise CannotRecord(f"writes are recorded on Linux only, this is {sys.platform}")
        self.file = file
        elf = _Elf(file)
        base = _loaded_at(file) - elf.lowest
        self.addresses: dict[str, list[int]] = {}
        for name, offset in elf.imports():
            self.addresses.setdefault(name, []).append(base + offset)

    def replace(self, name: str, function: Any) -> bool:
        """Let the module call `function` (a ctypes callback that the caller keeps alive) instead of `name`. Returns False if the
        module never calls `name`."""
        pointer = ctypes.cast(function, ctypes.c_void_p).value
        for address in self.addresses.get(name, ()):
            _make_writable(address)
            ctypes.c_void_p.from_address(address).value = pointer
        return name in self.addresses


class _Elf:
    """The parts of the file that list its imported functions."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.data = file.read_bytes()
        magic, self.machine = self.data[:6], struct.unpack_from("<H", self.data, 18)[0]
        if magic != b"\x7fELF\x02\x01" or self.machine not in RELOCATIONS:
            raise CannotRecord(
                f"writes are recorded on x86-64 and AArch64 only; {file.name} is for another machine ({self.machine})"
            )
        (headers,) = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        # type, flags, offset, vaddr, paddr, file bytes, memory bytes, align
        self.segments = [
            struct.unpack_from("<IIQQQQQQ", self.data, headers + at * size) for at in range(count)
        ]
        self.lowest = min(s[3] for s in self.segments if s[0] == _LOAD) & -mmap.PAGESIZE

    def imports(self) -> Iterator[tuple[str, int]]:
        """(function, place of its slot, relative to the module)."""
        table = dict(self._dynamic())
        for start, size in ((_JUMPS, _JUMPS_BYTES), (_RELA, _RELA_BYTES)):
            if start in table:
                yield from self._relocations(table, table[start], table.get(size, 0))

    def _dynamic(self) -> Iterator[tuple[int, int]]:
        (place, size) = next((s[2], s[5]) for s in self.segments if s[0] == _DYNAMIC)
        for at in range(place, place + size, 16):
            tag, value = struct.unpack_from("<qQ", self.data, at)
            if tag == 0:
                return
            yield tag, value

    def _relocations(self, table: dict[int, int], start: int, size: int) -> Iterator[tuple[str, int]]:
        for at in range(start, start + size, _RELA_ENTRY.size):
            offset, info, _ = _RELA_ENTRY.unpack_from(self.data, self._place(at))
            if info & 0xFFFFFFFF in RELOCATIONS[self.machine] and info >> 32:
                symbol = self._place(table[_SYMBOLS] + (info >> 32) * _SYMBOL_BYTES)
                (name,) = struct.unpack_from("<I", self.data, symbol)
                begin = self._place(table[_STRINGS] + name)
                yield self.data[begin : self.data.index(b"\0", begin)].decode(), offset

    def _place(self, address: int) -> int:
        """The place in the file of the byte that is loaded to this address."""
        for kind, _, offset, start, _, size, *_ in self.segments:
            if kind == _LOAD and start <= address < start + size:
                return int(address - start + offset)
        raise CannotRecord(f"{self.file.name} refers to {address:#x}, which it does not hold")


def _loaded_at(file: Path) -> int:
    wanted = str(file.resolve())
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == wanted and int(fields[2], 16) == 0:
            return int(fields[0].partition("-")[0], 16)
    raise CannotRecord(f"{file.name} is not among the modules that this process has loaded (/proc/self/maps)")


def _make_writable(address: int) -> None:
    page = address & -mmap.PAGESIZE
    if _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), _READ_WRITE) != 0:
        raise CannotRecord(
            f"the system does not let this process change its own table of functions ({page:#x})"
        )
