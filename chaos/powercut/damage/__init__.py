"""Damage at rest.

flips.py     damages live pages and judges the answers
damage.py    kinds of damage to a page
btree.py     the live pages of a file
survey.py    reads all data of a directory
audit.py     checks that storage does not make, and the damage that they would find
"""
