"""The bytes of a CSV file as UTF-8, with an end mark, and the refusal of backslashes that may be escapes or not."""

from __future__ import annotations

import codecs
import io
import re
from typing import Any

from ebla.pipelines.sources.dialect import Dialect, unclear_backslash, unclear_escape

SENTINEL = "\x1e~ebla~end~"  # after the last row: a quotation mark that is still open would swallow it


class Decoded(io.RawIOBase):
    """A stream of bytes as UTF-8, with an end mark. Raises SourceUnreadable if the first rows did not show whether a backslash
    is an escape, and a later row needs that."""

    def __init__(self, stream: Any, dialect: Dialect, path: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(dialect.encoding)()
        self._plain = dialect.encoding == "utf-8"
        self._first_line = dialect.sep_line
        self._ended = False
        self._held = b""
        self._path = path
        followers = f"[^{re.escape(dialect.quote + dialect.separator)}\r\n]"
        unclear = rf"\\{re.escape(dialect.quote)}{followers}" if dialect.escape is None else None
        self._unclear = None if unclear is None else re.compile(unclear.encode())
        self._last = b""
        self._unquoted = _Unquoted(dialect) if dialect.unclear else None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held and not self._ended:
            data = self._stream.read(len(buffer))
            self._ended = not data
            if not self._plain:
                data = self._decoder.decode(data, final=self._ended).encode()
            self._refuse_unclear(data)
            if self._ended:
                data += f"\n{SENTINEL}\n".encode()
            if self._first_line and data:
                data, self._first_line = data.partition(b"\n")[2], False
            self._held = data
        size = min(len(buffer), len(self._held))
        buffer[:size] = self._held[:size]
        self._held = self._held[size:]
        return size

    def _refuse_unclear(self, data: bytes) -> None:
        if self._unquoted is not None and self._unquoted.has_backslash(data, self._ended):
            raise unclear_backslash(self._path)
        if self._unclear is None:
            return
        if self._unclear.search(self._last + data):
            raise unclear_escape(self._path)
        self._last = (self._last + data)[-2:]


class _Unquoted:
    """Looks for backslashes outside of values in quotation marks, or everywhere if those do not show what a backslash is."""

    def __init__(self, dialect: Dialect) -> None:
        q, s = re.escape(dialect.quote), re.escape(dialect.separator)
        begun = rf"(?<![^{s}\r\n]){q}"
        self._opened = re.compile(begun.encode())
        self._quoted = re.compile(rf"{begun}[^{q}\\]*(?:\\.[^{q}\\]*)*{q}".encode(), re.DOTALL)
        self._mark = dialect.quote.encode()
        self._everywhere = dialect.escape is None
        self._left = b""  # with which the next data begins

    def has_backslash(self, data: bytes, ended: bool) -> bool:
        if self._everywhere:
            return b"\\" in data
        data = self._left + data
        whole = data if ended else data.rstrip(b"\\")  # what follows a backslash may be in the next data
        rest = self._quoted.sub(b"~", whole)
        opened = self._opened.search(rest)  # a quoted value that goes on in the next data
        plain = rest[: opened.start()] if opened else rest
        self._left = (self._mark if opened else rest[-1:].replace(self._mark, b"~")) + data[len(whole) :]
        return b"\\" in plain
