"""The common knowledge of all clients and roles about ledgers, as nodes of the coordination namespace.

paths.py      where the nodes are
records.py    typed records in nodes, changed by compare-and-set
kept.py       the registry of ledgers, stores and marks
counting.py   the counted time, by which logs delete old records
presence.py   a store tells that it runs
watching.py   watches of nodes, for roles
repairs.py    the state of repairs, and its switches
survey.py     who repairs what, for operators
"""
