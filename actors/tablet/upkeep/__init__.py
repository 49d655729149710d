"""What a tablet server does beside the write path.

maintenance.py    flushes memtables, trims logs, ends idle scans
expiry.py         the leader has stored answers of idle clients forgotten
scrubber.py       reads rows that nobody asks for, to find damage
reporter.py       heartbeats and tablet reports to the masters
"""
