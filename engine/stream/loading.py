"""From specifications to filters at work. Imports a filter's file when an arm uses it."""

from typing import Any

from engine.core.registry import FILTERS, resolve
from engine.stream.interface import FilterRules, FilterSpec, StreamSpec
from engine.stream.text_stream import StreamRules


def load_filter(spec: FilterSpec) -> FilterRules:
    """The filter of one specification.

    Raises:
        InvalidRequest: an unknown kind, rules that it does not take, or a package that is not installed.
    """
    build: Any = resolve(FILTERS, spec.kind, "filter")
    rules: FilterRules = build(spec)
    return rules


def load_stream(spec: StreamSpec) -> StreamRules:
    """An arm's filters, in their order; raises as `load_filter`."""
    return StreamRules(tuple(map(load_filter, spec.filters)))
