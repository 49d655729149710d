"""The masters' journal.

journals.py    the journal as `ebla up` finds it: formatted exactly once
format.py      how it is formatted, and what its nodes say of it
catalog.py     how many masters and journal nodes there are, and how the journal grows
"""
