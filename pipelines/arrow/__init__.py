"""Feed and verify in this process, with pyarrow: no Spark, no JVM, seconds for small sources.

feed.py      a source into a table, exactly once
verify.py    compares a table with its source, and its replicas with each other
"""
