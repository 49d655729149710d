"""Ledgers: append-only sequences of entries on several stores, of which a log is made (BookKeeper, seed 003).

messages.py   requests to stores, and entries
errors.py     one class for each next step of the caller
metadata.py   where a ledger's entries are, its states, and their changes
shared/       the registry of ledgers and stores, in the coordination namespace
store/        the ledger store, a role
worker/       the replication worker, a role: repairs marked ledgers
auditor/      the auditor, a role: notices lost stores, and marks their ledgers
handles/      writers, readers and recoveries, for clients and roles
"""
