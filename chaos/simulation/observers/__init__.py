"""Roles that record what leaves them, for the invariants.

votes.py       votes
promises.py    promises of journal nodes
sides.py       both sides of a forced configuration
"""
