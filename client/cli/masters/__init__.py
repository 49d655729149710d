"""Masters, their journal, and coordination.

masters.py     master list, failover
journals.py    journal status, rejoin
coord.py       coord ls, get, set, rm, sessions
"""
