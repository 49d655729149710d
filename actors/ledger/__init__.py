"""Ledgers: append-only sequences of entries on several stores, of which a log is made (BookKeeper, seed 003).

messages.py   requests to stores, and entries
errors.py     one class for each next step of the caller
metadata.py   where a ledger's entries are, its states, and their changes
shared/       the registry of ledgers and stores, in the coordination namespace
store/        the ledger store, a role
handles/      writers, readers and recoveries, for clients and roles
"""
