"""An actor keeps its state in a table: it is killed, starts again on any node, and continues where it was.

    ebla up --local 3 && python examples/stateful_actor.py

The state is written before the actor answers, so an answered call is never forgotten. Each call carries its number, so a call that
Ray repeats after the actor died counts once.
"""

from __future__ import annotations

import os

import pyarrow as pa
import ray

import ebla

SCHEMA = pa.schema([("account", pa.string()), ("balance", pa.int64()), ("last_call", pa.int64())])


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Account:
    """A balance. Its row is {account, balance, last_call}."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._table = ebla.connect().table("accounts")
        row = self._table.get({"account": name}) or {"balance": 0, "last_call": -1}
        self._balance, self._last_call = row["balance"], row["last_call"]

    def deposit(self, amount: int, call: int) -> int:
        """Add `amount` once per `call` (calls count up from 0), and return the balance."""
        if call > self._last_call:
            balance = self._balance + amount
            self._table.upsert({"account": self._name, "balance": balance, "last_call": call})
            # Only now: a call whose write failed can be repeated.
            self._balance, self._last_call = balance, call
        return self._balance

    def die(self) -> None:
        """End the actor's process, as a failing node would."""
        os._exit(1)


def main() -> None:
    with ebla.connect() as db:
        try:
            db.drop_table("accounts")
        except ebla.NotFound:
            pass
        db.create_table("accounts", schema=SCHEMA, primary_key=["account"])
        account = Account.remote("ada")
        for call in range(10):
            balance = ray.get(account.deposit.remote(10, call))
            if call == 4:
                account.die.options(max_task_retries=0).remote()
                print(f"the balance is {balance}, and the actor's process ends")
        print(f"after ten deposits of 10 the balance is {balance}")
        assert balance == 100
        ray.kill(account)


if __name__ == "__main__":
    main()
