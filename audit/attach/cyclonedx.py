"""CycloneDX in JSON: the pointer is a property of the BOM, since its schema refuses other keys."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from audit.attach import splice
from audit.attach.interface import PointedReport, decoded

NAME: Final = "specaudit:attachment"
PROPERTIES: Final = "properties"


@dataclass(frozen=True, slots=True)
class CycloneDx(PointedReport):
    """A BOM. One that has properties of its own already is bound by a statement alone."""

    def models_of(self, report: bytes) -> tuple[str, ...]:
        """The machine-learning model that the BOM describes as a whole."""
        metadata = splice.parse(decoded(report)).get("metadata")
        component = metadata.get("component") if isinstance(metadata, Mapping) else None
        if not isinstance(component, Mapping) or component.get("type") != "machine-learning-model":
            return ()
        return (str(component["name"]),) if component.get("name") else ()

    def extract(self, report: bytes) -> Mapping[str, Any] | None:
        """The pointer among the BOM's properties."""
        document = splice.parse(decoded(report))
        listed = document.get(PROPERTIES) if isinstance(document, Mapping) else None
        values = [item.get("value") for item in listed or () if isinstance(item, Mapping) and item.get("name") == NAME]
        block = json.loads(values[0]) if len(values) == 1 and isinstance(values[0], str) else None
        return block if isinstance(block, Mapping) else None

    def embed(self, report: bytes, block: Mapping[str, Any]) -> bytes:
        """The BOM with the pointer; every other byte is unchanged."""
        text = decoded(report)
        span = splice.object_at(text, ())
        if span.member(PROPERTIES) is not None:
            raise ValueError("the BOM has properties of its own")
        return splice.insert(text, span, PROPERTIES, [{"name": NAME, "value": json.dumps(block)}]).encode()

    def remove(self, report: bytes) -> bytes:
        """The BOM without its properties, which are the pointer alone."""
        text = decoded(report)
        return splice.remove(text, splice.object_at(text, ()), PROPERTIES).encode()


def _fits(_name: str, report: bytes) -> bool:
    document = splice.parse(decoded(report))
    return isinstance(document, Mapping) and document.get("bomFormat") == "CycloneDX"


FORMAT = CycloneDx("cyclonedx", _fits)
