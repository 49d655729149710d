"""The record inside an environment that says what it is, so that one at a wrong place, or of another version, is not taken for ours."""

from __future__ import annotations

import lmdb
import msgspec

from ebla.storage.directories.instance import FORMAT
from ebla.storage.errors import Damaged

IDENTITY_DATABASE, IDENTITY_KEY = b"~ebla", b"identity"


class Identity(msgspec.Struct, frozen=True):
    """The record inside an environment: its owner, its path, and the databases that it must have."""

    format: int
    instance: str
    path: str
    databases: tuple[str, ...]


def identity_of(opened: lmdb.Environment, path: str) -> Identity:
    """The record inside an environment. Raises Damaged if a version of ebla with another format made it."""
    database = opened.open_db(IDENTITY_DATABASE, create=False)
    with opened.begin() as transaction:
        found = msgspec.json.decode(transaction.get(IDENTITY_KEY, db=database) or b"", type=Identity)
    if found.format != FORMAT:
        raise Damaged(
            f"environment {path} has format {found.format}, this version reads {FORMAT}; use the version that made it",
            path=path,
        )
    return found
