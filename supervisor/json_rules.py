"""Two rules for the values of typed handlers that pydantic has not by itself: bytes are base64 in JSON wherever their class has no
config for them, and secrets are written as they are, since the handler needs them.

pydantic has a type's rules in its core schema, which is made of nested mappings. This module changes that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

BASE64 = {"val_json_bytes": "base64", "ser_json_bytes": "base64"}
_NO_SCHEMAS = frozenset({"cls", "default", "expected", "members", "metadata"})
"""The keys of a schema below which are values and classes of the user."""
_WITH_CONFIG = frozenset({"dataclass", "model", "typed-dict"})
_SECRETS = ("pydantic.types", "_serialize_secret")
"""The module of the functions with which pydantic writes secrets as asterisks, and the beginning of their names."""


class JsonRules:
    """The core schema of a type with these rules. `always` is whether pydantic would read it without them."""

    def __init__(self, schema: Any, *, always: bool = False) -> None:
        self.has_secrets = False
        self._changed = always
        self._schema = self._ruled(schema)

    def reader(self) -> Any:
        """Return the function that reads JSON text; None if it is that of pydantic."""
        from pydantic_core import SchemaValidator

        return _built(SchemaValidator, self._schema).validate_json if self._changed else None

    def writer(self) -> Any:
        """Return the function that takes what SchemaSerializer.to_python takes."""
        from pydantic_core import SchemaSerializer

        return _built(SchemaSerializer, self._schema).to_python

    def _ruled(self, node: Any) -> Any:
        if isinstance(node, list | tuple):
            return type(node)(map(self._ruled, node))
        if not isinstance(node, dict):
            return node
        kind = node.get("type")
        if not isinstance(kind, str):  # schemas by name
            return {key: self._ruled(value) for key, value in node.items()}
        ruled = {key: value if key in _NO_SCHEMAS else self._ruled(value) for key, value in node.items()}
        self._changed = self._changed or kind == "bytes"
        if kind in _WITH_CONFIG and (missing := _missing(node)):
            ruled["config"] = {**ruled.get("config", {}), **missing}
        if kind == "json-or-python" and _writes_asterisks(node.get("serialization", {})):
            self.has_secrets = True
            inner = ruled["json_schema"].get("schema", {"type": "any"})
            ruled["serialization"] = {"type": "function-plain", "function": _revealed, "return_schema": inner}
        return ruled


def _missing(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config that the class of this schema has not by itself."""
    cls = node.get("cls")
    own = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None) or {}
    return {key: value for key, value in BASE64.items() if key not in own}


def _writes_asterisks(serialization: Mapping[str, Any]) -> bool:
    function = serialization.get("function")
    module, beginning = _SECRETS
    return getattr(function, "__module__", "") == module and getattr(function, "__name__", "").startswith(beginning)


def _revealed(value: Any) -> Any:
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


def _built(kind: Callable[..., Any], schema: Any) -> Any:
    try:
        return kind(schema, BASE64, _use_prebuilt=False)  # else it takes what models have built, without the rules
    except TypeError:  # this version has only what is built now
        return kind(schema, BASE64)
