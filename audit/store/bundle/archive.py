"""The zip file of a bundle: written with the same bytes for the same run, read as a stranger's file.

Reading trusts no number in the file: names are of a fixed form, sizes and ratios have limits, declared and real, and
each part has the digest that the manifest states. An author of both can change both; the record root shows that.
"""

import hashlib
import json
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from audit.errors import UserError
from audit.store.base.canonical import to_json
from audit.text.staged_files import beside, unwritable
from audit.text.unsafe import visible

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
LOG: Final = "log.jsonl"
"""The proof that the rows are in a log (`audit.store.bundle.inclusion`), one line; version 1 has none."""
PART: Final = re.compile(r"tables/[a-z][a-z_]{0,59}\.jsonl|log\.jsonl")
MOST_PARTS: Final = 100
MANIFEST_BYTES: Final = 2**20
LINE_BYTES: Final = 2**30
"""Bytes of one row at most."""
TOTAL_BYTES: Final = 2**36
"""Bytes of all parts at most, uncompressed."""
RATIO: Final = 200
"""Compression at most, of parts above `FREE_BYTES`: rows of a run reach 20."""
FREE_BYTES: Final = 2**22
DAMAGED: Final = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, EOFError, NotImplementedError),
    *(RuntimeError, ValueError, OverflowError, LookupError, OSError),
)
"""Errors of `zipfile` on damaged files."""


@dataclass(frozen=True, slots=True)
class BundlePart:
    """One part, as the manifest states it."""

    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The first facts of a bundle: the run, the revision of its tables, and the parts by name."""

    run: str
    record_root: str
    revision: str
    parts: Mapping[str, BundlePart]


class BundleError(UserError):
    """A bundle is refused; the message names the file, the part and the reason."""


def refusal(path: Path, part: str, reason: object) -> BundleError:
    """The one-line error of a part of a bundle."""
    return BundleError(visible(f"{path}: {part}: {' '.join(str(reason).split())[:300]}; ask for the bundle again"))


def part_name(table: str) -> str:
    """The part that holds a table's rows."""
    return f"tables/{table}.jsonl"


class Writer:
    """Parts written one after the other."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._parts: dict[str, dict[str, Any]] = {}

    def part(self, name: str, rows: Iterable[Any]) -> None:
        """One part with one row per line, in canonical JSON."""
        digest, size, count = hashlib.sha256(), 0, 0
        with self._archive.open(_info(name), "w", force_zip64=True) as stream:
            for row in rows:
                line = to_json(row).encode("ascii") + b"\n"
                stream.write(line)
                digest.update(line)
                size, count = size + len(line), count + 1
        self._parts[name] = {"rows": count, "bytes": size, "sha256": digest.hexdigest()}

    def manifest(self, run: str, record_root: str, revision: str) -> None:
        """The manifest, last, because it has the digests of the parts."""
        facts = {"bundle": FORMAT, "run": run, "record_root": record_root, "revision": revision, "parts": self._parts}
        with self._archive.open(_info(MANIFEST), "w", force_zip64=True) as stream:
            stream.write(to_json(facts).encode("ascii") + b"\n")


def _info(name: str) -> zipfile.ZipInfo:
    """A member without a time of writing: the same rows give the same file."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, 3, (stat.S_IFREG | 0o644) << 16
    return info


@contextmanager
def writing(path: Path) -> Iterator[Writer]:
    """Write a bundle; the file appears when it is complete.

    Raises:
        UserError: the file cannot be written.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: is no file, and a bundle is one; choose another place")
    with beside(path, path) as (stream, made), zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        yield Writer(archive)
    try:
        made.replace(path)
    except OSError as error:
        made.unlink(missing_ok=True)
        raise unwritable(path, error) from error


class Reader:
    """An open bundle whose names and sizes are within the limits."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self._archive = archive
        self._infos = _members(path, archive)
        self.manifest = self._manifest()

    def lines(self, name: str) -> Iterator[bytes]:
        """A part's lines, without their ends.

        Raises:
            BundleError: the part is damaged, too long, or not what the manifest says, which shows at its end.
        """
        stated, digest, size, count = self.manifest.parts[name], hashlib.sha256(), 0, 0
        with self._open(name) as stream:
            while line := self._line(name, stream):
                digest.update(line)
                size, count = size + len(line), count + 1
                if size > stated.bytes or not line.endswith(b"\n"):
                    raise refusal(self.path, name, "its size is not the one that the manifest states")
                yield line[:-1]
        if (count, size, digest.hexdigest()) != (stated.rows, stated.bytes, stated.sha256):
            raise refusal(self.path, name, "its content does not have the digest that the manifest states")

    def _line(self, name: str, stream: IO[bytes]) -> bytes:
        try:
            return stream.readline(LINE_BYTES)
        except DAMAGED as error:
            raise refusal(self.path, name, f"cannot be unpacked: {error}") from error

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        try:
            stream = self._archive.open(self._infos[name])
        except DAMAGED as error:
            raise refusal(self.path, name, f"cannot be unpacked: {error}") from error
        with stream:
            yield stream

    def _manifest(self) -> Manifest:
        if MANIFEST not in self._infos:
            raise refusal(self.path, MANIFEST, "is missing: this is no bundle of a run")
        with self._open(MANIFEST) as stream:
            text = self._line(MANIFEST, stream)
        value = parse_line(self.path, MANIFEST, text.removesuffix(b"\n"))
        try:
            manifest = _manifest_of(value)
        except (LookupError, TypeError, ValueError) as error:
            raise refusal(self.path, MANIFEST, f"not the manifest of a bundle: {error}") from error
        for name in sorted((self._infos.keys() - {MANIFEST}) ^ manifest.parts.keys()):
            state = "is missing" if name in manifest.parts else "is not in the manifest"
            raise refusal(self.path, name, state)
        return manifest


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members by name; raises `BundleError` on the first that no bundle has."""
    infos = archive.infolist()
    if len(infos) > MOST_PARTS:
        raise refusal(path, "archive", f"has {len(infos)} parts; a bundle has at most {MOST_PARTS}")
    mapping: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        reason = _odd(info)
        if info.filename in mapping:
            reason = "stands twice in the archive"
        if reason is not None:
            raise refusal(path, repr(info.orig_filename)[:100], reason)
        mapping[info.filename] = info
    if sum(info.file_size for info in infos) > TOTAL_BYTES:
        raise refusal(path, "archive", f"unpacks to more than {TOTAL_BYTES >> 30} GiB")
    return mapping


def _odd(info: zipfile.ZipInfo) -> str | None:
    """Why a member is none of a bundle."""
    mode = info.external_attr >> 16
    if info.orig_filename != MANIFEST and not PART.fullmatch(info.orig_filename):
        return "no part of a bundle has this name"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "not a regular file"
    if info.flag_bits & 1:
        return "encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "compressed by another method than deflate"
    if info.filename == MANIFEST and info.file_size > MANIFEST_BYTES:
        return "larger than 1 MiB"
    if info.file_size > max(FREE_BYTES, RATIO * info.compress_size):
        return f"unpacks to more than {RATIO} times its size"
    return None


def _manifest_of(value: Any) -> Manifest:
    if value["bundle"] != FORMAT:
        raise ValueError(
            f"format {value['bundle']!r}, this version of audit reads {FORMAT}; export the run again with it"
        )
    if value.keys() != {"bundle", "run", "record_root", "revision", "parts"}:
        raise ValueError("it has other keys")
    texts = [value["run"], value["record_root"], value["revision"]]
    parts = {
        name: BundlePart(int(item["rows"]), int(item["bytes"]), str(item["sha256"]))
        for name, item in value["parts"].items()
    }
    if not all(isinstance(text, str) for text in texts) or not all(map(PART.fullmatch, parts)):
        raise ValueError("a value is of another kind")
    return Manifest(value["run"], value["record_root"], value["revision"], parts)


def parse_line(path: Path, place: str, line: bytes) -> Any:
    """A value from canonical JSON. Raises BundleError: not JSON, or not canonical: NaN, keys twice, other spaces."""
    try:
        value = json.loads(line.decode("ascii"))
        if to_json(value).encode("ascii") != line:
            raise ValueError("not canonical JSON")
    except (ValueError, RecursionError, TypeError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise refusal(path, place, reason) from error
    return value


@contextmanager
def reading(path: Path) -> Iterator[Reader]:
    """An open bundle. Raises BundleError: not a zip file, or not one of a bundle."""
    if not path.is_file():
        raise UserError(f"{path}: {'not a file' if path.exists() else 'no such file'}; name a bundle, FILE.zip")
    try:
        archive = zipfile.ZipFile(path)
    except DAMAGED as error:
        raise refusal(path, "archive", f"not a whole zip file: {error}") from error
    with archive:
        yield Reader(path, archive)
