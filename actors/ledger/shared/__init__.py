"""What all clients and roles share about ledgers, as nodes of the coordination namespace.

paths.py      where the nodes are
records.py    typed records in nodes, changed by compare-and-set
kept.py       the registry of ledgers, stores and marks
presence.py   a store tells that it runs
"""
