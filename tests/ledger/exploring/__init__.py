"""Every history of one small ledger, to a stated bound: see explorer.py."""
