"""What tests of known mistakes share: the mistake is found by a promise that it breaks, not by a fault of its own.

A mistake is swapped into production code. One whose signature no longer fits, or that leaves out what others rely on,
ends in a TypeError or a KeyError, and such an end says nothing about the test that it was meant for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ebla.storage.errors import EblaError

OF_ITS_OWN = (TypeError, AttributeError, NameError, LookupError)


@contextmanager
def found() -> Iterator[None]:
    with pytest.raises((AssertionError, EblaError, pytest.fail.Exception, TimeoutError)) as failure:
        yield
    error: BaseException | None = failure.value
    while error is not None:
        assert not isinstance(error, OF_ITS_OWN), f"the mistake fails by itself: {error!r}"
        error = error.__cause__ or error.__context__
