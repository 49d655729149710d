"""The master: it owns the catalog, places tablets on servers, and repairs what is under-replicated.

server.py      the active master: the calls of clients, operators and tablet servers
catalog/       which tables and tablets exist: edits, the one writer, checkpoints, the edit log
tables/        create, alter, drop, recall and look up tables
cluster/       what tablet servers report: who lives, what each replica is like; where new replicas go
rules/         what becomes of a tablet whose members are not well, decided without waiting
repair/        which members change now, and what operators ask for
errands/       the calls to tablet servers that follow: create, alter, change members, delete
leadership/    several masters over one journal: the active one, standbys, take-over
messages.py    messages between masters and operators
options.py     settings
measures.py    figures
"""
