"""`ebla feed | verify | demo`.

sources.py    the options of sources and of Spark, and which of the two engines reads a source
feeding.py    rows into a table
verifying.py  the proof that they are there; the demo
"""
