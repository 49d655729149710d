"""`ebla log` and `ebla ledger`.

logs.py      create, list, describe, trim, delete
records.py   append, cat, tail
stdin.py     records from standard input, a line each
ledgers.py   ledger list, show, check
"""
