"""Spark on the cluster that keeps the tables.

session.py      a Spark session through RayDP, on chosen hosts, that always ends
raydp_app.py    one Spark application on Ray: RayDP's parts, on chosen nodes, with an end in every case
executors.py    the executors of a session, and their hosts
datasets.py     the sources: data sets by name, files by path
feed.py         a DataFrame into a table, exactly once
tasks.py        the tasks in Spark's Python workers: write and count a partition
read.py         a table as a DataFrame, read on the hosts of its replicas
verify.py       compares a table with its source, and its replicas with each other
report.py       the reports of feeds, comparisons and the demo, for people
demo.py         the main job, end to end
probe.py        the longest time without writes during the demo
"""
