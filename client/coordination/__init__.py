"""Sessions, nodes, watches and locks (docs/coordination.md).

awaited.py     for code that awaits
blocking.py    the same for code that does not await
locks.py       a fair lock with a fencing token
"""
