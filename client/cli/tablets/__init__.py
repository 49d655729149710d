"""`ebla tablet`.

tablets.py       list, show, flush, compact, step-down
members.py       add-replica, remove-replica, move-replica
copies.py        copies, cancel-copy
forcing.py       unsafe-change-config
diagnosing.py    diagnose
quarantine.py    quarantine list, restore-to, purge
"""
