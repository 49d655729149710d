"""Conditions on rows, which clients build and servers evaluate.

conditions.py     conditions as immutable values
expressions.py    the conditions of `ebla.col`, evaluated over Arrow batches
"""
