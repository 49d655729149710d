"""The auditor, a role: notices lost stores, marks the ledgers that they had, and checks all ledgers from time to time.

auditor.py    the role: one of several is elected, watches the stores, and acts when it is due
losses.py     which stores are lost, and when an audit is due
auditing.py   an audit, and a check of all ledgers
held.py       the session of the elected auditor, which acts only while it is sure of its lock
options.py    settings
measures.py   figures
"""
