"""The actors of a deployment: `ebla up` launches each once on its bundle, or adopts it.
One whose role could not start is ended and launched again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import ray

from ebla.actors.errors import Unavailable
from ebla.actors.ray_shell import FAILED, STOPPING, Pong, load
from ebla.actors.ray_world import remote_class
from ebla.placement import asking
from ebla.placement.asking import Answer, find_actor, named_actors, poll
from ebla.placement.config import DeploymentConfig
from ebla.placement.deploy import groups
from ebla.placement.deploy.groups import Group
from ebla.placement.deploy.roles import RoleSpec
from ebla.placement.deploy.slots import Survey
from ebla.placement.state import Deployment

ASK_S = 3.0
DOWN_S = 60.0
POLL_S = 0.05

Progress = Callable[[str], None]


class Fleet:
    """Adopts or launches the actor of each role, and records which of the two. `new`: the group
    that no role was launched in before, if there is one."""

    def __init__(
        self,
        config: DeploymentConfig,
        placed: dict[str, Group],
        state: Deployment,
        available: Survey,
        progress: Progress,
        new: str | None = None,
    ) -> None:
        self.launched: list[str] = []
        self.adopted: list[str] = []
        self._config = config
        self._placed = placed
        self._bundles = groups.bundles(state.groups)
        self._available = available
        self._progress = progress
        self._new = new
        self._handles: dict[str, Any] = {}

    def bring(self, specs: Sequence[RoleSpec], deadline_s: float) -> dict[str, Answer]:
        """Adopt or launch these roles, and return their answers. A role whose host is away has no answer."""
        for spec in specs:
            if spec.address not in self._handles and self._available.host(spec.slot):
                self._handles[spec.address] = self._adopt_or_launch(spec)
        wanted = {
            spec.address: self._handles[spec.address] for spec in specs if spec.address in self._handles
        }
        return poll(wanted, deadline_s, self._settled)

    def _adopt_or_launch(self, spec: RoleSpec) -> Any:
        handle = find_actor(self._config.namespace, spec.address)
        if handle is not None and self._is_over(spec, handle):
            end_actor(self._config.namespace, spec.address)
            handle = None
        if handle is not None:
            self.adopted.append(spec.address)
            return handle
        self.launched.append(spec.address)
        self._progress(f"launching {spec.address} on {spec.slot}")
        bundle = self._bundles[spec.slot]
        options = remote_class(load(spec.role)).options(
            name=spec.address,
            namespace=self._config.namespace,
            get_if_exists=True,
            scheduling_strategy=groups.strategy(self._placed[bundle.group], bundle.index),
        )
        return options.remote(msgspec.msgpack.encode(spec.assignment(self._config)))

    def _is_over(self, spec: RoleSpec, handle: Any) -> bool:
        """Whether an actor that exists serves no more: its role could not start, and stays up only to
        report the reason, which may be mended now; an earlier `down` was interrupted, and the role has
        stopped; or the group was removed in which a simultaneous `up` launched it."""
        answer = poll({"": handle}, time.monotonic() + ASK_S)[""]
        if isinstance(answer, str):
            return self._bundles[spec.slot].group == self._new
        return answer.state in (FAILED, STOPPING)

    def _settled(self, address: str, pong: Pong) -> bool:
        done = asking.settled(pong)
        if done:
            self._progress(f"{address} is {pong.state}")
        return done


def end_actor(namespace: str, address: str) -> bool:
    """End the actor of a role for good. Returns whether there was one."""
    handle = find_actor(namespace, address)
    if handle is None:
        return False
    ray.kill(handle, no_restart=True)
    await_gone(namespace, [address], time.monotonic() + DOWN_S)
    return True


def await_gone(namespace: str, addresses: Sequence[str], deadline_s: float) -> None:
    while left := set(named_actors(namespace)) & set(addresses):
        if time.monotonic() > deadline_s:
            raise Unavailable(
                f"Ray does not end the actors {', '.join(sorted(left))}; see the dashboard, then try again"
            )
        time.sleep(POLL_S)
