"""Changes of members, by the master itself and for operators.

repairs.py     the repairs that are due: the rules, applied to all known tablets and servers
members.py     add, remove and move replicas
hosts.py       drain, maintain, suspend and forget servers
naming.py      matches the name that an operator gives with servers and members
"""
