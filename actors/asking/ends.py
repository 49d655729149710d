"""Reports to the active master which tablet server of this host has ended, so that its tablets get other leaders at once.

Run by the roles that may be beside a tablet server: journal nodes, masters and ledger stores. The kernel says that the process
has ended (World.neighbours). Without such a role, or if the news is lost, the next process of the server shows it, or the
detector's grace passes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from ebla.actors.asking.master_client import MasterClient
from ebla.actors.messages import Empty, ServerInstance
from ebla.actors.messages.appointments import ProcessEnded
from ebla.actors.world import World
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

REPORT_S = 10.0  # afterwards the master knows by itself


async def report_ends(world: World, masters: Sequence[str]) -> None:
    """Run until cancelled."""
    if not masters:
        return
    client = MasterClient(world, masters)
    while True:
        shown = await world.neighbours.ended()
        try:
            process = msgspec.msgpack.decode(shown, type=ServerInstance)
            log.info("%s has seen a process of server %s end", world.address, process.uuid)
            await client.ask("process_ended", ProcessEnded(process), Empty, deadline_s=REPORT_S)
        except (EblaError, msgspec.MsgspecError) as error:  # or of another version of ebla
            log.info("%s could not report the end of a process: %s", world.address, error)
