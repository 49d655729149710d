"""The master's knowledge of the tablet servers.

servers.py       the servers that have sent a heartbeat: identity, liveness, load
reports.py       the edits that follow from a report, and the state that is kept in memory only
levels.py         what the master does by itself: the operator's level, and too few live servers
assignment.py    the servers of new tablets, and the replacement of servers that do not create them
"""
