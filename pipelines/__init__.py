"""Spark on the cluster that keeps the tables.

session     a Spark session through RayDP, placed and surely ended
datasets    what can be fed: data sets by name, files by path
feed        a DataFrame into a table, exactly once
read        a table as a DataFrame, read where its replicas are
verify      is the table what the source is, and are its replicas alike?
report      what was found, for people; demo is the main job, end to end
"""
