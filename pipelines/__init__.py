"""Rows into tables and out of them: with pyarrow in this process, or with Spark on the cluster that keeps the tables.

sources/      what a source is, and its rows as Arrow batches
arrow/        feed and verify in this process
datasets.py   data sets by name
target.py     the table that a feed writes: made if it is missing, written exactly once
outcomes.py   progress and results of feeds and comparisons
replicas.py   compares the replicas of a table with each other
report.py     the reports of all of these, for people

session.py    a Spark session through RayDP, on chosen hosts, that always ends
executors.py  the executors of a session
raydp_app.py  RayDP's application, started and ended
frames.py     sources as DataFrames
feed.py       a DataFrame into a table, exactly once
tasks.py      the tasks in Spark's workers
read.py       a table as a DataFrame, read on the hosts of its replicas
verify.py     compares a table with its source by Spark
logs.py       a log as a DataFrame, and a DataFrame appended to a log
demo.py       the main job, end to end
probe.py      how long a table accepts no writes
events.py     a log that is written while a node is killed, and the proof that it is whole
"""
