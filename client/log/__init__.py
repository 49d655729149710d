"""Logs: append-only sequences of records over ledgers, with one writer at a time.

directory.py  logs are made, listed, dropped
awaited.py    logs, their writers and readers, for code that awaits
blocking.py   the same for code that does not
appender.py   opens the log for its writer, fences the one before, coalesces appends, begins new ledgers
deadlines.py  appends end at their deadlines
reading.py    records from a position on, and following
records.py    what is kept of a log, and how records lie in entries
options.py    settings of a log
"""
