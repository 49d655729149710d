"""Decisions without waiting.

healing.py     the next change of members that a tablet needs (Kudu's 3-4-3 rules)
"""
