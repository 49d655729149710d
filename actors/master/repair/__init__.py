"""Changes of members, by the master itself and for operators.

repairs.py     which tablets get their members changed now: the rules over all that is known
members.py     add, remove and move replicas; drain, maintain and forget servers
verbs.py       the calls of operators, which only the active master carries out
"""
