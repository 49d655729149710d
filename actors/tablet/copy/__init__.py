"""Copies of tablets from server to server (docs/repair.md).

recovery.py         the leader: knows how its peers are, and requests a copy where the log cannot help
copies.py           the target: accepts, runs and ends copies
job.py              one copy: fetches chunks a few ahead, verifies and writes them in order
sources.py          the source: one snapshot per session, sent in numbered chunks
log_retention.py    which log entries are kept for replicas that were just copied
bandwidth.py        what all copies from a server may take of its network
verbs.py            the calls about copies and quarantine
"""
