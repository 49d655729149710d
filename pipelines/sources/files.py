"""The files of a source: of a path, a glob, a directory or a URI. Format and compression are recognised by content and name."""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence
from glob import glob, has_magic
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs

from ebla.errors import SourceUnreadable
from ebla.pipelines.sources.dialect import utf16_without_mark
from ebla.storage.errors import InvalidArgument

SCHEMES = "s3://, gs://, abfs:// or hdfs://"  # of Arrow's filesystems
FORMATS = ("csv", "json", "parquet", "arrow", "orc")
ENDINGS = {
    **dict.fromkeys((".csv", ".tsv", ".tab", ".txt"), "csv"),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    ".orc": "orc",
}
PACKED = (".gz", ".bz2", ".zst", ".lz4")
BINARY = ("parquet", "arrow", "orc")
HEAD_BYTES = 4096
ARROW_STREAM = b"\xff\xff\xff\xff"
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_FORMATS = {b"PAR1": "parquet", b"ARROW1": "arrow", ARROW_STREAM: "arrow", b"ORC": "orc"}
_REFUSED = {
    b"PK\x03\x04": "is an Excel workbook or another zip file; save it as CSV, or unpack it",
    b"\xd0\xcf\x11\xe0": "is an Excel workbook; save it as CSV",
    b"FEA1": "is a Feather file of version 1; write it again with a present pyarrow",
    **dict.fromkeys(
        (b"\xfd7zXZ\0", b"LZIP\x01", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\x1f\x9d", b"PK\x05\x06"),
        f"is compressed in a way that is not read here; decompress it first, or compress it with one of {', '.join(PACKED)}",
    ),
    b"SQLite format 3\0": "is a SQLite database; export the table as CSV (sqlite3 -header -csv FILE 'SELECT ...')",
    b"Obj\x01": "is an Avro file; convert it to parquet",
    b"\x89HDF\r\n\x1a\n": "is an HDF5 file; convert it to parquet",
    **dict.fromkeys((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"%PDF-"), "is an image or a PDF, not rows"),
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "is UTF-32; convert it to UTF-8"),
}
_TAR_MARK = slice(257, 262), b"ustar"


class File(msgspec.Struct, frozen=True):
    """A file, or row groups of one. `below`: the path below the source's directory; of a glob, below its part without wildcards. `modified_ns` and `bytes` show whether the
    file has changed."""

    path: str
    below: str
    bytes: int
    modified_ns: int
    format: str
    compression: str | None
    stream: bool = False  # Arrow's stream format, not its file format
    groups: tuple[int, int] | None = None  # of a parquet file: the row groups to read

    @property
    def name(self) -> str:
        return self.below

    def labels(self) -> dict[str, str]:
        """The column values in the names of directories, such as day=1/."""
        parts = PurePosixPath(self.below).parts[:-1]
        return dict(part.split("=", 1) for part in parts if "=" in part)


class Place:
    """A filesystem, and the root of the source in it. Can be pickled."""

    def __init__(self, source: str) -> None:
        self.source = source
        if "://" in source:
            try:
                self.filesystem, self.root = pafs.FileSystem.from_uri(source)
            except (pa.ArrowException, OSError) as error:
                raise SourceUnreadable(
                    f"{source!r} cannot be reached: {error}; name a path, or an address of {SCHEMES}, or download the files first",
                    source=source,
                ) from error
        else:
            self.filesystem, self.root = (
                pafs.LocalFileSystem(),
                os.path.abspath(os.path.expanduser(source)),
            )

    def find(self, format: str | None) -> tuple[File, ...]:
        """The files in the order of their paths, all of one format. Hidden and empty files of a directory are left out."""
        if format is not None and format not in FORMATS:
            raise InvalidArgument(f"there is no format {format!r}; the formats are {', '.join(FORMATS)}")
        files = [self._file(info, below, format) for info, below in self._infos()]
        kinds: dict[str, File] = {}
        for file in files:
            kinds.setdefault(file.format, file)
        if len(kinds) > 1:
            (one, first), (other, second) = list(kinds.items())[:2]
            raise SourceUnreadable(
                f"{self.source!r} has files of several formats ({first.name} is {one}, {second.name} is {other}); name "
                "the files of one format, such as dir/*.csv",
                source=self.source,
            )
        return tuple(files)

    def open(self, file: File) -> Any:
        """The content as a stream of bytes, decompressed."""
        return self.filesystem.open_input_stream(file.path, compression=file.compression)

    def changed(self, file: File) -> bool:
        info = self.filesystem.get_file_info(file.path)
        return (info.size, info.mtime_ns) != (file.bytes, file.modified_ns)

    def _infos(self) -> Sequence[tuple[Any, str]]:
        """The files with their paths below the root, sorted."""
        info = self.filesystem.get_file_info(self.root)
        if info.type == pafs.FileType.File:
            return [(info, info.base_name)]
        if info.type == pafs.FileType.Directory:
            return self._below(info.path)
        roots = sorted(glob(self.root, recursive=True)) if "://" not in self.source else []
        fixed = os.path.join("", *takewhile(lambda part: not has_magic(part), PurePosixPath(self.root).parts))
        found: list[tuple[Any, str]] = []
        for path in roots:
            each, below = self.filesystem.get_file_info(path), os.path.relpath(path, fixed)
            if each.type != pafs.FileType.Directory:
                found.append((each, below))
            elif "**" not in self.source:
                found += [(info, os.path.join(below, name)) for info, name in self._below(path)]
        if not found:
            raise SourceUnreadable(f"there is no file {self.source}", source=self.source)
        return found

    def _below(self, root: str) -> list[tuple[Any, str]]:
        infos = self.filesystem.get_file_info(pafs.FileSelector(root, recursive=True))
        files = [(info, info.path[len(root) :].lstrip("/")) for info in infos if info.is_file and info.size]
        shown = [
            (info, below)
            for info, below in sorted(files, key=lambda each: each[1])
            if not any(map(_is_hidden, PurePosixPath(below).parts))
        ]
        if not shown:
            raise SourceUnreadable(f"the directory {root} has no files with rows", source=self.source)
        return shown

    def _file(self, info: Any, below: str, format: str | None) -> File:
        path = info.path
        try:
            with self.filesystem.open_input_stream(path, compression=None) as raw:
                head = raw.read(HEAD_BYTES)
            compression = next((c for magic, c in _COMPRESSIONS.items() if head.startswith(magic)), None)
            if compression is not None:
                with self.filesystem.open_input_stream(path, compression=compression) as unpacked:
                    head = unpacked.read(HEAD_BYTES)
        except OSError as error:
            raise SourceUnreadable(f"{path} cannot be read: {error}", source=self.source) from error
        chosen = format_of(path, head, format)
        if compression is not None and chosen in BINARY:
            raise SourceUnreadable(f"{path} is {chosen} inside {compression}; unpack it", source=self.source)
        stream = head.startswith(ARROW_STREAM)
        return File(path, below, info.size, info.mtime_ns, chosen, compression, stream)


def _is_hidden(part: str) -> bool:
    """A directory such as _day=1 has values of a column."""
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def format_of(path: str, head: bytes, wanted: str | None = None) -> str:
    """The format by the first bytes of the content, else as `wanted`, else by the ending of the path. Raises InvalidArgument if
    content and `wanted` contradict each other."""
    if not head:
        raise SourceUnreadable(f"{path} is empty", source=path)
    for magic, problem in _REFUSED.items():
        if head.startswith(magic):
            raise SourceUnreadable(f"{path} {problem}", source=path)
    at, mark = _TAR_MARK
    if head[at] == mark:
        raise SourceUnreadable(f"{path} is a tar archive; unpack it first", source=path)
    seen = next((format for magic, format in _FORMATS.items() if head.startswith(magic)), None)
    named = wanted or _by_ending(path)
    if seen is None and named in BINARY:
        raise SourceUnreadable(
            f"{path} does not begin as a file of format {named}; is it complete?", source=path
        )
    if seen is not None and wanted not in (None, seen):
        raise InvalidArgument(f"{path} is {seen}, not {wanted}; leave the format out")
    if seen is not None:
        return seen
    if named is not None:
        return named
    if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")) and not utf16_without_mark(head):
        raise SourceUnreadable(
            f"{path} is no text, and of none of the formats {', '.join(BINARY)}; convert it to one of them",
            source=path,
        )
    return "json" if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") else "csv"


def _by_ending(path: str) -> str | None:
    bare = path.lower()
    for packed in PACKED:
        bare = bare.removesuffix(packed)
    return ENDINGS.get(PurePosixPath(bare).suffix)
