"""Subjects: the models that a deployment will run, by digest.

The digest of a model folder is computed from its files; no model is loaded.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit.errors import UserError
from audit.text.unsafe import quoted
from engine.core.errors import ModelError

DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
TOKENIZER: Final = "tokenizer"


@dataclass(frozen=True, slots=True)
class Subject:
    """A role and the digest (hex SHA-256) that it must have; `origin` is the policy or option that requires it."""

    role: str
    sha256: str
    origin: str


def parse_subject(text: str) -> Subject:
    """A subject from `ROLE=sha256:...` or `ROLE=FOLDER`, a model folder or GGUF file that is digested here.

    The role tokenizer digests the folder's tokenizer files, any other role its configuration and weights.

    Raises:
        UserError: neither form, or a folder without a model.
    """
    role, separator, value = text.partition("=")
    if not separator or not role or not value:
        raise UserError(f"--subject {quoted(text)}: not a subject; write ROLE=sha256:DIGEST or ROLE=FOLDER")
    if value.startswith("sha256:"):
        return Subject(role, hex_digest(value, f"--subject {quoted(text)}"), "--subject")
    return Subject(role, _folder_digest(role, Path(value)), value)


def hex_digest(text: str, where: str) -> str:
    """The digits of `sha256:...`. Raises UserError: another text."""
    if not DIGEST.fullmatch(text):
        raise UserError(f"{where}: not a digest; write sha256: and 64 lower-case hex digits")
    return text.removeprefix("sha256:")


def _folder_digest(role: str, folder: Path) -> str:
    # Imported here: the engine's model code imports torch, which digests on the command line do without.
    from engine.models.files.folder import model_digest, open_folder, tokenizer_digest
    from engine.models.files.gguf_file import folder_of

    try:
        files = open_folder(folder_of(folder, str(folder)).path, str(folder)).files
    except ModelError as error:
        raise UserError(f"--subject {role}: {' '.join(str(error).split())}") from error
    return tokenizer_digest(files) if role == TOKENIZER else model_digest(files)
