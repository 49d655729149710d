"""An actor writes an event log, a task follows it, and another actor takes the writing over.

    ebla up --local 3 && python examples/event_log.py

The second actor opens the log, which fences the first: no record of the first gets into the log from then on. The task sees all
acknowledged records of both, in order and once.
"""

from __future__ import annotations

import ray

import ebla


@ray.remote
class Sensor:
    """Writes measurements. It is the log's one writer, until another sensor opens the log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._writer = ebla.connect().log("events").writer()

    def measure(self, count: int) -> list[int]:
        """Append measurements, and return their positions. Raises LogFenced if another sensor has taken over."""
        return list(self._writer.append_many([f"{self._name} {number}".encode() for number in range(count)]))


@ray.remote
def follow(count: int) -> list[str]:
    """Read this many records as they come."""
    with ebla.connect() as db:
        return [entry.data.decode() for entry in db.log("events").read(follow=True, limit=count)]


def main() -> None:
    with ebla.connect() as db:
        try:
            db.drop_log("events")
        except ebla.NotFound:
            pass
        events = db.create_log("events")
        follower = follow.remote(10)
        first = Sensor.remote("first")
        print("the first sensor wrote positions", ray.get(first.measure.remote(5)))
        second = Sensor.remote("second")
        print("the second sensor took over, and wrote positions", ray.get(second.measure.remote(5)))
        try:
            ray.get(first.measure.remote(1))
        except ebla.LogFenced as error:
            print("the first sensor:", error.message)
        else:
            raise AssertionError("the first sensor is fenced")
        followed = ray.get(follower)
        assert followed == [f"{name} {number}" for name in ("first", "second") for number in range(5)]
        print(f"the follower read {len(followed)} records, from {followed[0]!r} to {followed[-1]!r}")
        print(events.info())
        ray.kill(first)
        ray.kill(second)


if __name__ == "__main__":
    main()
