"""Several masters over one journal, of which one is active (docs/masters.md).

group.py          one of several masters: active or standby
active_term.py    one active term, from the recovery of the journal to its end
standby.py        the catalog of a standby, which follows the journal
growth.py         the growth of the journal from one node to several
"""
