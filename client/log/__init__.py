"""Logs: append-only sequences of records over ledgers, with one writer at a time.

directory.py  logs are made, listed, dropped
awaited.py    logs, their writers and readers, for code that awaits
ledgers.py    ledgers that are part of no log, for code that awaits
blocking.py   logs and ledgers for code that does not
appender.py   the writer: coalesces appends, begins new ledgers, goes on after a repair
opening.py    ends the writer before, and adds a ledger to the log
parts.py      large appends, divided
deadlines.py  appends end at their deadlines
reading.py    records from a position on, and following
positions.py  where positions are in a ledger, also beside lost entries
blocks.py     records as Arrow blocks, and rows as records, for Ray Data and Spark
records.py    what is kept of a log, and how records lie in entries
options.py    settings of a log
"""
