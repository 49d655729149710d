"""Tests of planted mistakes: a broken promise must reveal the mistake, not an error of the mistake's own code.

A mistake replaces production code. A mistake with a wrong signature or a missing attribute ends in a TypeError or a KeyError,
which proves nothing about the test.
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
        assert not isinstance(error, OF_ITS_OWN), f"the mistake's own code fails: {error!r}"
        error = error.__cause__ or error.__context__
