"""Damage at rest.

flips.py     damages live pages and judges what comes out
damage.py    what may happen to a page
btree.py     which pages of a file are alive
survey.py    reads everything that a directory holds
audit.py     checks that storage does not make, and what they would have found
"""
