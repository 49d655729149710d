"""A large append goes in parts of an entry's size, and has one result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from ebla.storage.errors import EblaError

ENTRY_BYTES = 256 << 10  # an entry has no more, or one record
ENTRY_RECORDS = 20_000


def parts(given: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The records in parts of an entry's size: the bytes of one request to a store are bounded."""
    first = size = 0
    for at, record in enumerate(given):
        if at > first and (size + len(record) > ENTRY_BYTES or at - first == ENTRY_RECORDS):
            yield given[first:at]
            first, size = at, 0
        size += len(record)
    yield given[first:]


def joined(futures: Sequence[asyncio.Future[int]]) -> asyncio.Future[int]:
    """One future for all parts of an append: the position of the first one, or the first error. It is possibly applied if one of
    the parts is in the log, or may be."""
    if len(futures) == 1:
        return futures[0]
    whole: asyncio.Future[int] = futures[0].get_loop().create_future()

    def done(_: asyncio.Future[int]) -> None:
        if whole.done() or not all(future.done() for future in futures):
            return
        errors = [error for future in futures if isinstance(error := future.exception(), EblaError)]
        if not errors:
            whole.set_result(futures[0].result())
            return
        error = type(errors[0])(errors[0].message, **errors[0].values())
        error.possibly_applied = len(errors) < len(futures) or any(each.possibly_applied for each in errors)
        whole.set_exception(error)

    for future in futures:
        future.add_done_callback(done)
    return whole
