"""Keeps Ray off the console: a command prints its own result and nothing else. `-v` lets it speak."""

from __future__ import annotations

import logging
import os
import warnings

# Only what a child process may inherit: `ebla up --local` starts Ray's nodes, and their logs are wanted.
SILENT = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # else every ray.init warns of a change to come


def before_ray(verbose: int) -> None:
    """Call it before ray is imported for the first time."""
    level = logging.DEBUG if verbose > 1 else logging.INFO if verbose else logging.ERROR
    logging.basicConfig(level=level, format="%(asctime)s %(name)s: %(message)s")
    if verbose:
        return
    for name, value in SILENT.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
