"""Only one process at a time does the nightly work, and a process that lost its lock without noticing does no harm.

    ebla up --local 3 && python examples/lock_with_fencing.py

The token of a lock grows from holder to holder. Rows carry it in their key, and readers use the rows of the highest token: as soon
as the new holder has written, late rows of an old holder are not seen.
"""

from __future__ import annotations

import pyarrow as pa

import ebla

SCHEMA = pa.schema([("report", pa.string()), ("token", pa.int64()), ("total", pa.int64())])


def newest(reports: ebla.Table, report: str) -> dict[str, object]:
    """The report's row with the highest token."""
    rows = reports.scan(where=ebla.col("report") == report)
    return max(rows, key=lambda row: row["token"])


def main() -> None:
    with ebla.connect() as db:
        try:
            db.drop_table("reports")
        except ebla.NotFound:
            pass
        reports = db.create_table("reports", schema=SCHEMA, primary_key=["report", "token"])
        with db.session() as first, first.lock("/locks/nightly") as lock:
            old_token = lock.token
            reports.upsert({"report": "nightly", "token": old_token, "total": 1})
        with db.session() as second, second.lock("/locks/nightly") as lock:
            assert lock.token > old_token
            reports.upsert({"report": "nightly", "token": lock.token, "total": 2})
        # The first process wakes up after a long pause. It believes that it still holds the lock.
        reports.upsert({"report": "nightly", "token": old_token, "total": -1})
        row = newest(reports, "nightly")
        print(f"the report's total is {row['total']}, of the holder with token {row['token']}")
        assert row["total"] == 2


if __name__ == "__main__":
    main()
