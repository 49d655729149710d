"""What the master knows of the tablet servers.

servers.py       the servers that it has heard of: identity, liveness, load
reports.py       what a report means for the catalog, and what is kept in memory only
assignment.py    which servers a new tablet goes to, and when a server that does not create it is replaced
"""
