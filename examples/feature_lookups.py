"""A Ray Serve deployment looks up features in a table for each request.

    ebla up --local 3 && python examples/feature_lookups.py      needs: pip install "ray[serve]"

Each replica of the deployment connects once. Requests that a replica serves at the same time share calls to the tablet servers.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
from ray import serve

import ebla
import ebla.aio

SCHEMA = pa.schema([("user", pa.int64()), ("visits", pa.int64()), ("country", pa.string())])


@serve.deployment(num_replicas=1, ray_actor_options={"num_cpus": 0.5})
class Scores:
    """Scores a user by the features in table `features`."""

    def __init__(self) -> None:
        self._opening: asyncio.Task[ebla.aio.Table] | None = None

    async def __call__(self, user: int) -> float:
        """The user's score; 0.0 if the user is unknown."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        features = await (await self._opening).get({"user": user})
        return 0.0 if features is None else score(features)

    async def _open(self) -> ebla.aio.Table:
        db = await ebla.aio.connect()
        return await db.table("features")


def score(features: dict[str, Any]) -> float:
    return features["visits"] * (1.5 if features["country"] == "SY" else 1.0)


def main() -> None:
    with ebla.connect() as db:
        try:
            db.drop_table("features")
        except ebla.NotFound:
            pass
        features = db.create_table("features", schema=SCHEMA, primary_key=["user"])
        countries = ["SY" if user % 2 else "TR" for user in range(1000)]
        features.upsert(
            pa.table({"user": range(1000), "visits": range(1000), "country": countries}, schema=SCHEMA)
        )
        handle = serve.run(Scores.bind(), name="scores", route_prefix=None)
        answers = [handle.remote(user) for user in (3, 4, 5000)]
        found = [answer.result(timeout_s=30) for answer in answers]
        print(f"the scores are {found}")
        assert found == [4.5, 4.0, 0.0]
        features.upsert({"user": 3, "visits": 100, "country": "SY"})
        assert handle.remote(3).result(timeout_s=30) == 150.0, "a lookup sees every earlier write"
        serve.shutdown()


if __name__ == "__main__":
    main()
