"""As much of JSON Schema 2020-12 as our telemetry schema uses, so that a test needs no further package."""

from __future__ import annotations

import re
from typing import Any

KNOWN = {
    "$schema", "$id", "$defs", "$ref", "title", "description", "oneOf", "anyOf", "allOf", "if", "then", "type", "const",
    "enum", "required", "properties", "propertyNames", "maxProperties", "additionalProperties", "items", "minItems",
    "maxItems", "minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMaximum",
}  # fmt: skip


def accepts(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """Whether the value is valid; every keyword met must be one that this function knows."""
    unknown = set(schema) - KNOWN
    if unknown:
        raise NotImplementedError(f"keywords {sorted(unknown)}")
    if "$ref" in schema and not accepts(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], value, root):
        return False
    if "const" in schema and not equal(value, schema["const"]):
        return False
    if "enum" in schema and not any(equal(value, option) for option in schema["enum"]):
        return False
    types = schema.get("type", [])
    if types and not any(is_type(value, t) for t in ([types] if isinstance(types, str) else types)):
        return False
    if sum(accepts(option, value, root) for option in schema.get("oneOf", [])) != ("oneOf" in schema):
        return False
    if "anyOf" in schema and not any(accepts(option, value, root) for option in schema["anyOf"]):
        return False
    if not all(accepts(part, value, root) for part in schema.get("allOf", [])):
        return False
    if "if" in schema and accepts(schema["if"], value, root) and not accepts(schema["then"], value, root):
        return False
    if isinstance(value, str):
        return accepts_text(schema, value)
    if isinstance(value, dict):
        return accepts_object(schema, value, root)
    if isinstance(value, list):
        fits = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return fits and all(accepts(schema.get("items", {}), item, root) for item in value)
    if is_type(value, "number"):
        low, high = schema.get("minimum", -float("inf")), schema.get("maximum", float("inf"))
        return bool(low <= value <= high and value < schema.get("exclusiveMaximum", float("inf")))
    return True


def accepts_text(schema: dict[str, Any], text: str) -> bool:
    fits = schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", len(text))
    return fits and re.search(schema.get("pattern", ""), text) is not None


def accepts_object(schema: dict[str, Any], value: dict[str, Any], root: dict[str, Any]) -> bool:
    if not set(schema.get("required", [])) <= set(value):
        return False
    if len(value) > schema.get("maxProperties", len(value)):
        return False
    if not all(accepts(schema.get("propertyNames", {}), name, root) for name in value):
        return False
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", {})
    return all(accepts(properties.get(name, others), held, root) for name, held in value.items())


def is_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer":
        return isinstance(value, int)
    types: dict[str, Any] = {"null": type(None), "string": str, "number": (int, float), "object": dict, "array": list}
    return name in types and isinstance(value, types[name])


def equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)
