"""Workloads of logs and ledgers.

events.py     clients take turns as the writer of a log
ledgers.py    clients write ledgers without a log, and end those of others
"""
