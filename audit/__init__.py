"""The user-facing package: suites, checks, store, gate, reports.

The names in `__all__` are the Python interface; they are imported when they are first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from audit.api.reading import RunResult, StoreView, open_store
    from audit.api.running import run
    from audit.suite.allowances import Allowances
    from audit.suite.loader import load_suite
else:
    import importlib

    _PLACES = {
        "Allowances": "audit.suite.allowances",
        "RunResult": "audit.api.reading",
        "StoreView": "audit.api.reading",
        "load_suite": "audit.suite.loader",
        "open_store": "audit.api.reading",
        "run": "audit.api.running",
    }

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module 'audit' has no attribute {name!r}")
        return getattr(importlib.import_module(_PLACES[name]), name)


__all__ = ["Allowances", "RunResult", "StoreView", "load_suite", "open_store", "run"]
