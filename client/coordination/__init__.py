"""Sessions, nodes, watches and locks (docs/coordination.md).

awaited.py     for code that awaits
nodes.py       reads and watches of nodes, awaited
changes.py     a session that changes nodes, each change once, and keeps itself alive
blocking.py    the same for code that does not await
locks.py       a fair lock with a fencing token
"""
