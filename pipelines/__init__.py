"""Spark on the cluster that keeps the tables.

session     a Spark session through RayDP, on chosen hosts, that always ends
datasets    the sources: data sets by name, files by path
feed        a DataFrame into a table, exactly once
read        a table as a DataFrame, read on the hosts of its replicas
verify      compares a table with its source, and its replicas with each other
report      the reports of these, for people
demo        the main job, end to end
"""
