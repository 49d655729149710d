"""The invariants of every catalog, and the catalog of an image, which is checked for them."""

from __future__ import annotations

from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.records import (
    CREATING,
    KEPT,
    LIVE,
    REQUESTS_MAX,
    RUNNING,
    CatalogImage,
)


def loaded(image: CatalogImage) -> Catalog:
    """The catalog of an image, which is sound."""
    catalog = Catalog()
    catalog.load(image)
    require_sound(catalog)
    return catalog


def require_sound(catalog: Catalog) -> None:
    """Assert the invariants. All concern one state, none concerns its history."""
    for name, owner in catalog.names.items():
        assert catalog.tables[owner].name == name and catalog.tables[owner].state == RUNNING, name
    for table in catalog.tables.values():
        assert (table.state == RUNNING) == (catalog.names.get(table.name) == table.table), table.table
        assert (table.state == KEPT) == (table.table in catalog.kept), table.table
        assert len(table.tablets) == table.schema.partitioning.tablets, table.table
        if table.state in (RUNNING, KEPT):
            for bucket, current in enumerate(table.tablets):
                at = catalog.tablets[current]
                assert (at.table, at.bucket) == (table.table, bucket) and at.state in LIVE, current
    there = (table for table in catalog.tables.values() if table.state in (RUNNING, KEPT))
    assert catalog.replicas == sum(table.replicas * len(table.tablets) for table in there)
    for tablet, record in catalog.tablets.items():
        table = catalog.tables[record.table]
        if record.state in LIVE:
            assert table.state in (RUNNING, KEPT) and table.tablets[record.bucket] == tablet, tablet
        if record.state in (CREATING, RUNNING):
            assert record.configuration is not None, tablet
        assert all(record.member(uuid) is not None for uuid in record.unseen), tablet
    assert catalog.doubted.keys() <= catalog.members.appointed.keys(), (
        "only a live PacificA tablet is in doubt"
    )
    assert len(catalog.requests) <= REQUESTS_MAX
    catalog.namespace.check()
