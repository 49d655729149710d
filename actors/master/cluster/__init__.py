"""The master's knowledge of the tablet servers.

servers.py       the servers that have sent a heartbeat: identity, liveness, load
reports.py       the edits that follow from a report, and the state that is kept in memory only
assignment.py    the servers of new tablets, and the replacement of servers that do not create them
"""
