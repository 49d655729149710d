"""`ebla level [freezed | steady]`: whether the master replaces replicas and creates tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ebla.cli.frame.options import argument
from ebla.cli.frame.ui import Shown
from ebla.wording import count

if TYPE_CHECKING:
    from ebla.actors.master.messages import LevelReply
    from ebla.operate.cluster import Cluster
    from ebla.operate.waiting import Progress

ASK_S = 15.0


async def level(
    cluster: Cluster,
    progress: Progress,
    level: Annotated[str | None, argument("LEVEL", "freezed or steady; without it, show the level.")] = None,
) -> Shown:
    """Show or set the level: at freezed no replica is replaced and no table created; steady is the default.

    Reads, writes, and changes of leaders continue at each level. Too few live servers freeze the cluster until they are back.
    """
    from ebla.actors.master.messages import LevelReply, LevelRequest

    reply = await cluster.persist("level", LevelRequest(level), LevelReply, ASK_S, progress)
    return reply, *_lines(reply)


def _lines(reply: LevelReply) -> list[str]:
    servers = f"{reply.live} of {count(reply.expected, 'server')} send heartbeats"
    return [
        f"level {reply.level}: "
        + (f"cure is frozen {reply.frozen}" if reply.frozen else "tablets are cured"),
        servers + (f"; with fewer than {reply.needed}, cure is frozen" if reply.needed else ""),
    ]
