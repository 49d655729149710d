"""`ebla log`, `ebla ledger` and `ebla autorecovery`.

logs.py      create, list, describe, trim, delete
records.py   append, cat, tail
stdin.py     records from standard input, a line each
ledgers.py   ledger list, show, check, give-up
autorecovery.py    who repairs which ledger, and the switches of repairs
"""
