"""Decisions without waiting.

healing.py     the next step for a tablet whose members are not as they should be (Kudu's 3-4-3 rules)
"""
