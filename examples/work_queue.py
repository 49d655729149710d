"""Ray tasks share a queue of work, and every result is stored exactly once.

    ebla up --local 3 && python examples/work_queue.py

A worker claims a job by `insert` into `claims`: of two workers, one gets AlreadyPresent. The result has the job's id as its key and
as its write id, so a task that Ray runs a second time writes nothing twice. A worker that dies leaves its claim behind; a later
round takes over claims whose jobs have no result.
"""

from __future__ import annotations

import hashlib
import os

import pyarrow as pa
import ray

import ebla

JOBS, WORKERS = 40, 4


def queue(db: ebla.Database) -> tuple[ebla.Table, ebla.Table]:
    """The tables `claims` (job, round, worker) and `results` (job, square), both empty."""
    key = pa.field("job", pa.int64())
    schemas = {
        "claims": (pa.schema([key, ("round", pa.int64()), ("worker", pa.int64())]), ["job", "round"]),
        "results": (pa.schema([key, ("square", pa.int64())]), ["job"]),
    }
    made = []
    for name, (schema, keys) in schemas.items():
        try:
            db.drop_table(name)
        except ebla.NotFound:
            pass
        made.append(db.create_table(name, schema=schema, primary_key=keys))
    return made[0], made[1]


@ray.remote(max_retries=3)
def worker(number: int, round_: int, claims: ebla.Table, results: ebla.Table) -> int:
    """Work until no job is left; returns how many jobs this worker did."""
    done = 0
    for job in range(JOBS):
        if results.get({"job": job}) is not None:
            continue
        try:
            claims.insert({"job": job, "round": round_, "worker": number})
        except ebla.AlreadyPresent:
            continue
        if job == 3 and round_ == 0:
            os._exit(1)  # the process dies after it claimed a job; Ray runs the task again
        client = hashlib.blake2b(f"squares/{job}".encode(), digest_size=16).digest()
        results.upsert([{"job": job, "square": job * job}], write_id=ebla.WriteId(client, 0))
        done += 1
    return done


def main() -> None:
    with ebla.connect() as db:
        claims, results = queue(db)
        for round_ in range(3):
            left = JOBS - results.scan().count()
            if left == 0:
                break
            print(f"round {round_}: {left} jobs are left")
            ray.get([worker.remote(number, round_, claims, results) for number in range(WORKERS)])
        found = results.scan().to_arrow()
        assert sorted(found.column("job").to_pylist()) == list(range(JOBS))
        print(f"{found.num_rows} results, the sum of squares is {sum(found.column('square').to_pylist())}")


if __name__ == "__main__":
    main()
