"""The masters' journal.

journals.py    formatting and verification of the journal by `ebla up`, exactly once
format.py      how the journal is formatted, and how the states of its nodes are judged
catalog.py     the numbers of masters and journal nodes, and the growth of the journal
"""
