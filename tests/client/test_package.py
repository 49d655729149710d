"""The names that `import ebla` provides, and the modules that it does not load."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import ebla
from ebla import errors
from ebla.actors import errors as actor_errors
from ebla.storage import errors as storage_errors


def test_importing_ebla_loads_neither_ray_nor_arrow_and_the_awaited_api_no_ray() -> None:
    program = (
        "import sys, ebla\n"
        "ebla.NotFound, ebla.errors\n"
        "heavy = [name for name in ('ray', 'pyarrow', 'pandas', 'numpy') if name in sys.modules]\n"
        "assert heavy == [], heavy\n"
        "ebla.aio, ebla.col, ebla.hash, ebla.Table\n"
        "assert 'ray' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("name", ebla.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(ebla, name) is not None
    assert name in dir(ebla)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nope"):
        _ = ebla.nope


@pytest.mark.parametrize("module", [actor_errors, storage_errors])
def test_every_error_of_ebla_can_be_caught_by_name(module: object) -> None:
    for name, kind in inspect.getmembers(module, inspect.isclass):
        if issubclass(kind, ebla.EblaError):
            assert getattr(errors, name) is kind
            assert name in errors.__all__


def test_errors_are_also_the_matching_python_errors() -> None:
    assert issubclass(ebla.NotFound, KeyError)
    assert issubclass(ebla.InvalidArgument, ValueError)
    assert issubclass(ebla.TimedOut, TimeoutError)
