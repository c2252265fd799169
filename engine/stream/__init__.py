"""Text as it is committed, and the safety filters over it.

Everything here is driven by committed tokens only. A filter is one file in `engine/stream/filters` and one line in
`engine.core.registry.FILTERS`.
"""
