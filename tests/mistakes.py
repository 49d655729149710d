"""Tests of planted mistakes: a broken promise must reveal the mistake, not an error of the mistake's own code.

A mistake replaces production code. A mistake with a wrong signature or a missing attribute ends in a TypeError or a KeyError,
which proves nothing about the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import getattr_static, signature
from typing import Any

import pytest

from ebla.chaos.defects.defect import Swap
from ebla.storage.errors import EblaError

OF_ITS_OWN = (TypeError, AttributeError, NameError, LookupError)


def plant(patch: pytest.MonkeyPatch, *swaps: Swap) -> None:
    """A replacement whose first parameter is called `honest` gets the replaced function there."""
    for where, name, wrong in swaps:
        if isinstance(wrong, property):  # also of an attribute that only instances have
            patch.setattr(where, name, wrong, raising=False)
        elif callable(wrong) and next(iter(signature(wrong).parameters), "") == "honest":
            patch.setattr(where, name, _around(getattr_static(where, name), wrong))
        else:
            patch.setattr(where, name, wrong)


def _around(honest: Callable[..., Any], wrong: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **named: wrong(honest, *arguments, **named)


def must_be_found(patch: pytest.MonkeyPatch, test: Callable[[], Any], *swaps: Swap) -> None:
    """With the mistake the test fails."""
    plant(patch, *swaps)
    with pytest.raises(
        (AssertionError, EblaError, pytest.fail.Exception, TimeoutError, asyncio.TimeoutError)
    ) as failure:
        test()
    error: BaseException | None = failure.value
    while error is not None:
        assert not isinstance(error, OF_ITS_OWN), f"the mistake's own code fails: {error!r}"
        error = error.__cause__ or error.__context__
