"""`ebla feed | verify | demo`.

feeding.py    rows into a table, and the proof that they are there
"""
