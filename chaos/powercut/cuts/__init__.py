"""Power cuts.

cuts.py       draws when, and what is left; lays it down; verifies
platter.py    what the disk may hold after a power cut
verify.py     starts the roles and checks every promise
"""
