"""The texts of single tokens, by the tokenizer that a run used, where its files are on this machine and unchanged.

A token of bytes that are no whole character has U+FFFD in its text: only tokens together have one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from audit.store import Store, StoredRun
from engine.backends.catalogue import SourceKind

TOKENIZER: Final = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Pieces:
    """The text of a token by its id; None with the reason `why` if it is not known."""

    text: Callable[[int], str] | None
    why: str = ""


def pieces_of(run: StoredRun) -> Pieces:
    """The texts of a run's tokens. Reads only the tokenizer's files, and no network."""
    target = next((used for used in run.artifacts if used.role == "target"), None)
    if target is not None and target.name.startswith(SourceKind.SCRIPTED):
        # imported late, like everything of the engine: most of what a run shows needs none of it
        from engine.backends.native import ALPHABET

        return Pieces(lambda token: ALPHABET[token] if token < len(ALPHABET) else "")
    used = next((artifact for artifact in run.artifacts if artifact.role == "tokenizer"), None)
    if used is None:
        return Pieces(None, "the run records no tokenizer")
    folder = _folder(used.name)
    if folder is None or not (folder / TOKENIZER).is_file():
        return Pieces(None, f"{used.name} has no {TOKENIZER} on this machine")
    from engine.core.errors import ModelError
    from engine.models.files.folder import digest_of_tokenizer

    try:
        unchanged = digest_of_tokenizer(folder, used.name) == used.sha256
    except ModelError as error:
        return Pieces(None, str(error))
    if not unchanged:
        return Pieces(None, f"the tokenizer of {used.name} has changed since the run")
    if find_spec("tokenizers") is None:
        return Pieces(None, "tokenizers is not installed: pip install 'specaudit[engine]'")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    return Pieces(lambda token: str(tokenizer.decode([token], skip_special_tokens=False)))


def recorded_pieces(store: Store, run: StoredRun) -> Pieces:
    """The texts that the store holds, which need no files; those of other tokens as by `pieces_of`.

    A token that neither knows is `[ID]`.
    """
    known = store.figures.pieces(run.ulid)
    if not known:
        return pieces_of(run)
    others = cache(lambda: pieces_of(run).text)

    def text(token: int) -> str:
        if token in known:
            return known[token]
        other = others()
        return f"[{token}]" if other is None else other(token)

    return Pieces(text)


def _folder(name: str) -> Path | None:
    """The folder of a source; None for one that is not a folder here."""
    from engine.core.errors import ModelError
    from engine.models.files.folder import bundled_folder
    from engine.models.files.gguf_file import folder_of

    try:
        if name.startswith(SourceKind.BUNDLED):
            return bundled_folder(name)
        path = folder_of(Path(name).expanduser(), name).path
    except ModelError:
        return None
    return path if path.is_dir() else None
