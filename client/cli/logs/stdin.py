"""Records from standard input, a line each. A thread reads, so that a slow input keeps neither the writer nor its readers waiting."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator

from ebla.errors import OverLimit
from ebla.log.options import RECORD_BYTES_MAX

CHUNK_BYTES = 1 << 18
CHUNKS_MAX = 4  # read ahead


async def batches() -> AsyncIterator[list[bytes]]:
    """The lines as they arrive, without their ends. Raises OverLimit for a line that no record can have."""
    left = b""
    async for chunk in _chunks():
        *lines, left = (left + chunk).split(b"\n")
        if len(left) > RECORD_BYTES_MAX:
            raise OverLimit(
                f"a line of the input has more than {RECORD_BYTES_MAX:,} bytes, and a record has that many at most",
                limit="record_bytes",
                most=RECORD_BYTES_MAX,
            )
        if lines:
            yield lines
    if left:
        yield [left]


async def _chunks() -> AsyncIterator[bytes]:
    try:
        number = sys.stdin.fileno()
    except io.UnsupportedOperation:  # a program calls the command, and its input is in memory
        for chunk in _of(sys.stdin.buffer.read()):
            yield chunk
        return
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue(CHUNKS_MAX)

    def read() -> None:
        """Python's own buffered reader would hold a lock that the end of the process waits for."""
        chunk: bytes | OSError = b"."
        while chunk and not isinstance(chunk, OSError):
            try:
                chunk = os.read(number, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                asyncio.run_coroutine_threadsafe(queue.put(chunk), loop).result()
            except RuntimeError:  # the loop has ended
                return

    threading.Thread(target=read, name="ebla stdin", daemon=True).start()
    while found := await queue.get():
        if isinstance(found, OSError):
            raise found
        yield found


def _of(data: bytes) -> Iterator[bytes]:
    return (data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))
