"""The replication worker, a role: repairs marked ledgers, and deletes what its host's store need not keep.

worker.py     the role: takes marked ledgers under a lock, one at a time
repairing.py  repairs one ledger
copying.py    copies entries to a store
garbage.py    deletes entries of deleted and moved ledgers
locking.py    the lock of a ledger
rules.py      which step repairs which damage, and when a repair is tried again
options.py    settings
measures.py   figures
"""
