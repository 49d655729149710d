"""ebla's API for code that awaits. The blocking API (`ebla.connect`) runs it in a thread of its own.

    async with ebla.aio.connect() as db:
        flights = await db.table("flights")
        await flights.upsert({"carrier": "UA", "flight": 1545, ...})
        row = await flights.get({"carrier": "UA", "flight": 1545})
        table = await flights.scan(columns=["origin"], where=ebla.col("origin") == "JFK").to_arrow()

Calls of many tasks in one process are coalesced into few calls per server. Every method takes `deadline_s` (60 s by
default): for one row, for each batch of a call with many rows, for each block of a scan. Then it raises TimedOut.

On Python 3.10 a cancellation can be lost, so that the call goes on, if it arrives in the same step of the event loop in which a
deadline inside of the call ends.
"""

# Only names of the API: editors complete every name of a module.
from ebla.aio_database import Database as Database
from ebla.aio_database import connect as connect
from ebla.aio_database import local as local
from ebla.aio_table import Table as Table
from ebla.coordination.awaited import Coordination as Coordination
from ebla.coordination.awaited import Session as CoordinationSession
from ebla.log.awaited import Log as Log
from ebla.log.awaited import LogWriter as LogWriter
from ebla.log.ledgers import Ledger as Ledger
from ebla.log.ledgers import LedgerWriter as LedgerWriter
from ebla.read.scan import Scan as Scan
from ebla.write.alter import Alteration as Alteration

__all__ = [
    "Alteration",
    "Coordination",
    "CoordinationSession",
    "Database",
    "Ledger",
    "LedgerWriter",
    "Log",
    "LogWriter",
    "Scan",
    "Table",
    "connect",
    "local",
]


def __dir__() -> list[str]:
    return __all__
