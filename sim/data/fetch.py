"""Downloads of data files from their publishers; a file is stored complete or not at all."""

import hashlib
import http.client
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from deltafl.fl.data.registry import Download
from deltafl.fl.read.regular import open_regular
from deltafl.fl.read.zipped import opened_zip, unpacked
from deltafl.sim.errors import UserError
from deltafl.sim.progress import Bar

_SCHEMES: Final = ("http", "https", "file")
_TIMEOUT_S: Final = 60
_CHUNK: Final = 1 << 20
_UNPACKED: Final = 16
"""How many times larger than the archive's bound a file in it may be; text packs by less."""


def fetch(
    download: Download, folder: Path, *, mirror: str | None, tell: Callable[[str], None]
) -> None:
    """Download a file, check it, and extract the wanted members if it is an archive.

    Existing files are left as they are. An incomplete file never gets its final name.

    Args:
        download: the file.
        folder: where to put it; created if missing.
        mirror: the address of a folder that has the file under the same name, to use instead of the
            source's.
        tell: receives messages, each a sentence; for each file its SHA-256, which is worth noting,
            because most sources publish no hash.

    Raises:
        UserError: the file cannot be reached, is too large, cut short or damaged, or is not an
            archive that contains the wanted files.
        OSError: the folder cannot be written.
    """
    name = urllib.parse.urlsplit(download.url).path.rsplit("/", 1)[-1]
    url = f"{mirror.rstrip('/')}/{name}" if mirror else download.url
    if urllib.parse.urlsplit(url).scheme not in _SCHEMES:
        raise UserError(f"{url}: the address must begin with {', '.join(_SCHEMES)} and ://")
    wanted = [folder / member for member in (download.members or (name,))]
    if all(path.exists() for path in wanted):
        tell(f"{', '.join(map(str, wanted))}: already there")
        return
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{name}.part"
    try:
        tell(f"fetching {url}")
        _receive(url, part, download)
        for path in wanted:
            if download.members:
                _unpack(part, path, download, url)
            else:
                shutil.move(part, path)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            tell(f"{path}: {path.stat().st_size:,} bytes, SHA-256 {digest}")
    finally:
        part.unlink(missing_ok=True)


def _receive(url: str, part: Path, download: Download) -> None:
    md5 = hashlib.md5(usedforsecurity=False)
    try:
        # the scheme was checked by the caller
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer, part.open("wb") as file:  # noqa: S310
            announced = answer.headers.get("Content-Length", "")
            total = int(announced) if announced.isdecimal() else None
            with Bar(desc=part.stem.strip("."), total=total, unit="B", unit_scale=True) as bar:

                def received(chunk: bytes) -> None:
                    md5.update(chunk)
                    bar.update(len(chunk))

                size = _copy(answer, file, download.max_bytes, url, received)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(error, urllib.error.HTTPError):
            reason = f"it answers {error.code} {error.reason}"
            error.close()
        raise UserError(
            f"{url} cannot be fetched ({reason}): connect to the network, or, if the source has "
            "moved or is down, give --mirror the address of a folder that has the file, or put the "
            f"needed files into {part.parent} yourself"
        ) from error
    if total is not None and total != size:
        raise UserError(f"{url}: only {size:,} of {total:,} bytes arrived: fetch it again")
    if download.md5 and md5.hexdigest() != download.md5:
        raise UserError(
            f"{url}: its MD5 is {md5.hexdigest()} but must be {download.md5}: the file is damaged, "
            "or the source has changed"
        )


def _copy(
    source: IO[bytes], target: IO[bytes], limit: int, name: str, also: Callable[[bytes], None]
) -> int:
    size = 0
    while chunk := source.read(_CHUNK):
        size += len(chunk)
        if size > limit:
            raise UserError(f"{name}: more than {limit:,} bytes: this is not the expected file")
        target.write(chunk)
        also(chunk)
    return size


def _unpack(part: Path, path: Path, download: Download, url: str) -> None:
    """Extract one file of the archive by its base name, always into our own folder."""
    draft = path.with_name(f".{path.name}.part")
    try:
        with open_regular(part) as opened, opened_zip(opened) as archive:
            found = [one for one in archive.infolist() if Path(one.filename).name == path.name]
            if len(found) != 1:
                raise UserError(
                    f"{url}: {len(found)} files {path.name} in the archive instead of one: the "
                    "source has changed"
                )
            with draft.open("wb") as file:
                file.writelines(unpacked(archive, found[0], _UNPACKED * download.max_bytes))
        shutil.move(draft, path)
    except ValueError as error:
        raise UserError(f"{url} is not a readable zip archive ({error}): fetch it again") from error
    finally:
        draft.unlink(missing_ok=True)
