"""What must hold in a simulated deployment, one function each.

invariants.py     of one moment, and since the beginning
seen.py           one running replica as the invariants look at it
applied.py        what the replicated log says of writes
membership.py     changes of members, and copies
remembering.py    what a server must go on knowing of a tablet
hanging.py        a data disk that hangs holds up no other replica
log_times.py      the time of a log never goes back
"""
