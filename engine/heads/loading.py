"""From the name of a source to a model or a draft head, whichever its folder holds."""

from pathlib import Path

from engine.heads.checkpoint import LoadedHead
from engine.heads.formats import layout_of
from engine.models.files.verified_files import pinned
from engine.models.loading import LoadedModel, LoadOptions, OpenedSource, load_opened, open_source, require_way


def load_model_or_head(
    source: str, way: LoadOptions, revision: str | None, base: Path | None
) -> LoadedModel | LoadedHead:
    """The model or the head that the source holds, its files read once. Raises as `load_model`."""
    opened = open_source(source, revision, base)
    head = _head(opened)
    if head is not None:
        return head
    require_way(source, way)
    return load_opened(opened, way)


def load_head(source: str, *, revision: str | None = None, base: Path | None = None) -> LoadedHead | None:
    """The draft head in a folder; None if the folder holds a model that runs on its own.

    Raises:
        ModelError: the source cannot be opened, or its head cannot be read whole.
    """
    return _head(open_source(source, revision, base))


def _head(opened: OpenedSource) -> LoadedHead | None:
    layout = layout_of(opened.folder.config)
    if layout is None:
        return None
    with pinned(opened.folder) as folder:
        head = layout.read(folder)
    own = {"architecture": head.layout, "family": head.family, "declared_lossy": list(head.lossy)}
    return LoadedHead(head, opened.folder.files, opened.source, opened.resolved, {**opened.facts, **own})
