"""Conditions on rows: clients build them, they travel, servers evaluate them.

conditions.py     conditions as immutable values
expressions.py    the conditions of `ebla.col`, evaluated over Arrow batches
"""
