"""What `ray start` does for the nodes of the shared cluster."""

from __future__ import annotations

from typing import Any

from ebla.placement import ray_private


def without_log_monitor(parameters: Any, head: bool) -> None:
    """RAY_START_HOOK: no process that sends the output of workers to drivers. No driver of these tests shows it."""
    ray_private.of_local_node(parameters, head)
    parameters.include_log_monitor = False
