"""The work of a tablet server beside the write path.

maintenance.py    flushes memtables, trims logs, expires answers of idle clients, ends idle scans
compactor.py      merges the runs of replicas whose rows are columns
scrubber.py       reads all rows in the background, to find damage
reporter.py       heartbeats and tablet reports to the masters
"""
