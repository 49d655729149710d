"""Copies of tablets from server to server (docs/repair.md).

recovery.py         the leader: watches the health of its peers, and requests a copy if the log cannot help
copies.py           the target: accepts, runs and ends copies
job.py              one copy: fetches chunks a few ahead, verifies and writes them in order
sources.py          the source: one snapshot per session, sent in numbered chunks
log_retention.py    the log entries that are kept for replicas that were just copied
bandwidth.py        the limit of the network bandwidth of all copies from a server
verbs.py            the calls about copies and quarantine
"""
