"""The ledger store: one Ray actor on each host that keeps ledgers.

store.py      the role: requests, one synced commit for all that arrive together
rules.py      what a store accepts and refuses; nothing there waits
commits.py    commits, and how long they wait for the disk
arrivals.py   entries in the order of their arrival, before they are sorted by ledger
moving.py     moves them to their ledgers, many at a time
forgotten.py  which heads of deleted ledgers are forgotten
entries.py    the entries, in both places
visits.py     when moved entries may be deleted
confirmed.py  the last acknowledged entry of each ledger, and the readers that wait for the next
records.py    the bytes on disk
options.py    settings
measures.py   figures
"""
