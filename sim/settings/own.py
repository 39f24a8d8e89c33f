"""The settings of code of one's own, and a digest of it, by which machines compare theirs."""

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

from deltafl.sim.errors import ConfigError
from deltafl.sim.settings.constraints import Pattern

_FORM: Final = r"(?=[!-~]{0,200}\Z)([A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*)?"
_Path = Annotated[str, Pattern(_FORM, "an import path such as 'package.module:name'")]
_MOST_FILES: Final = 10_000
_MOST_BYTES: Final = 1 << 28


class NotAllowedError(ConfigError):
    """A server names code that a device has not, or in another version; data play no part in it."""


@dataclass(frozen=True, slots=True)
class OwnConfig:
    """Code of one's own, by import paths "package.module:name"; empty for what is not.

    Whoever runs imports it, so it has to be installed, or on PYTHONPATH. A device on a machine of
    its own imports only what its own settings name, and only if its files are those of the server.

    Attributes:
        module: a `torch.nn.Module`, or what makes one without arguments.
        loss: a function of a batch's outputs and targets that gives a loss for each sample.
        metric: what is measured beside the loss: a function like `loss`, or a `DeviceMetric`.
        optimizer: a function of parameters and a learning rate that makes an optimiser of torch.
        strategy: a `WeightedMean`, an object or a class without arguments; by secure sums, unless
            `federation.algorithm` is "own".
        digests: of the files, "package=SHA-256"; `deltafl run` and `deltafl serve` write them.
    """

    module: _Path = ""
    loss: _Path = ""
    metric: _Path = ""
    optimizer: _Path = ""
    strategy: _Path = ""
    digests: tuple[str, ...] = ()

    @property
    def paths(self) -> Mapping[str, str]:
        """The import paths that are given, by the setting."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: path for name, path in named.items() if isinstance(path, str) and path}

    def found(self) -> tuple[str, ...]:
        """The digests of the files that are installed here.

        Of each top-level package, it is of the paths and contents of all its files, but for hidden
        ones and Python's own cache. What the code imports from other packages is not part of it.

        Raises:
            ConfigError: one is not installed, has no files of its own, or too many.
        """
        packages = sorted({path.split(":")[0].split(".")[0] for path in self.paths.values()})
        return tuple(f"{name}={_digest(name)}" for name in packages)

    def check_allowed(self, said: "OwnConfig") -> None:
        """Check that what a server names is what these settings name, and has the same files.

        Args:
            said: the server's.

        Raises:
            NotAllowedError: it is not; it says what differs.
        """
        mine = self.paths
        for name, path in said.paths.items():
            if mine.get(name) != path:
                raise NotAllowedError(
                    f"own.{name} = {path!r} is what the server says, and here it is "
                    f"{mine.get(name, '')!r}: a device imports what its own settings name; to "
                    f"allow it, --set own.{name}={path}"
                )
        here = dict(one.split("=") for one in self.digests)
        told = dict(one.partition("=")[::2] for one in said.digests)
        for path in said.paths.values():
            name = path.split(":")[0].split(".")[0]
            if told.get(name) != here[name]:
                raise NotAllowedError(
                    f"own.digests: the files of {name!r} have the digest {here[name]:.12}… here, "
                    f"and {told.get(name, 'none'):.12}… at the server: install the same version"
                )


def _digest(package: str) -> str:
    """SHA-256 of the names and contents of a package's files, in hex."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ConfigError(
            f"[own]: {package!r} is not installed here: install it, or name its folder in "
            "PYTHONPATH"
        )
    roots = [Path(place) for place in spec.submodule_search_locations or ()]
    if not roots and spec.has_location and spec.origin is not None:
        roots = [Path(spec.origin)]
    digest, count, size = sha256(), 0, 0
    for root in roots:
        for name, file in sorted(_files(root)):
            content = file.read_bytes()
            count, size = count + 1, size + len(content)
            if count > _MOST_FILES or size > _MOST_BYTES:
                raise ConfigError(
                    f"[own]: {package!r} is too large to compare: import it in a "
                    "package of your own, and name that"
                )
            digest.update(len(name.encode()).to_bytes(8, "big") + name.encode())
            digest.update(sha256(content).digest())
    if not count:
        raise ConfigError(f"[own]: {package!r} has no files of its own that can be compared")
    return digest.hexdigest()


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    if root.is_file():
        yield root.name, root
        return
    for file in root.rglob("*"):
        parts = file.relative_to(root).parts
        if file.is_file() and not any(one.startswith((".", "__pycache__")) for one in parts):
            yield "/".join(parts), file
