"""Logs of tablets.

entries.py        a log entry on disk, bound to its tablet, its index and its whole history
shared_log.py     one log for all tablets of a server: one synced commit per round
private_log.py    a tablet's own log: entries that outlive the shared log
"""
