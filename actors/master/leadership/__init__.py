"""Several masters over one journal, of which one is active (docs/masters.md).

group.py          one of several masters: active or standby
active_term.py    one time of being active, from the recovery of the journal to its end
standby.py        a standby's catalog follows the journal
growth.py         the journal grows from one node to several
"""
