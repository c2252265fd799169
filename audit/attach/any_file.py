"""Any file: Markdown, HTML, PDF, a table. A statement alone binds it.

A broken JSON file is refused rather than bound as bytes.
"""

from __future__ import annotations

from audit.attach.interface import PlainFile

FORMAT = PlainFile("file", lambda name, report: not name.endswith(".json"))  # noqa: ARG005 - the interface's signature
