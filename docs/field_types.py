"""An extension of the reference's builder: fields of result types get the types of their annotations.

The builder inspects imported classes, and the descriptors of their fields have no types.
"""

from __future__ import annotations

import inspect
from typing import Any

import griffe


class FieldTypes(griffe.Extension):
    def on_class_members(self, *, node: griffe.ObjectNode, cls: griffe.Class, **_: Any) -> None:
        for name, annotation in inspect.get_annotations(node.obj).items():
            text = getattr(
                annotation, "__forward_arg__", annotation
            )  # a field of a NamedTuple has a reference
            field = cls.members.get(name)
            if isinstance(field, griffe.Attribute) and isinstance(text, str):
                field.annotation = text
                field.docstring = None  # "Alias for field number 0"; the class describes its fields
