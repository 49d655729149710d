"""The master: owns the catalog, places tablets on servers, and repairs under-replicated tablets.

server.py      the active master: the calls of clients, operators and tablet servers
catalog/       the tables and tablets that exist: edits, the one writer, checkpoints, the edit log
tables/        create, alter, drop, recall and look up tables
cluster/       the reports of tablet servers: liveness, replica states; the choice of servers for new replicas
rules/         decides, without waiting, the changes of a tablet whose members are not healthy
repair/        the changes of members that are due, and the requests of operators
pacifica/      the primaries of PacificA tablets: leases of servers, requests, orders
errands/       the calls to tablet servers that follow: create, alter, change members, delete
leadership/    several masters over one journal: the active one, standbys, take-over
messages.py    messages between masters and operators
options.py     settings
measures.py    figures
"""
