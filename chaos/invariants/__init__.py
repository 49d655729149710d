"""Invariants of a simulated deployment.

invariants.py     the list of invariants, and the watch that checks them
seen.py           one running replica, and the state that its invariants read
applied.py        the writes in the replicated log
membership.py     changes of members, and copies
levels.py         a frozen cluster is not cured
pacifica.py       primaries and voters, against the catalog
ledgers.py        ledgers: their metadata, and the disks of their stores
ledger_disks.py   what ledger stores have on their disks, also of stores that are down
deletions.py      nothing is deleted unasked
remembering.py    what a server must never forget about a tablet
hanging.py        a hanging data disk blocks no replica on other disks
quiescence.py     a quiescent follower has a leader
log_times.py      the time of a log never goes back
"""
