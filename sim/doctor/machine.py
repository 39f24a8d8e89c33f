"""What this machine has: cores, memory, instruction sets, a GPU, and places for files."""

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from deltafl.sim.doctor.findings import Finding, State, good

NETWORKED: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "beegfs", "ceph", "gpfs", "lustre"}
    | {"ocfs2", "orangefs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"}
)
"""Types of file systems whose files lie on another machine, as Linux calls them."""

_MEGABYTE: Final = 1e6
_LITTLE_MEMORY: Final = 1e9
"""The quickstart takes up to a gigabyte with the CUDA build of torch."""
_LITTLE_SPACE: Final = 5e8
_UNLIMITED: Final = 1 << 60  # what version 1 of control groups says where there is no limit is more


def machine(root: Path = Path("/")) -> Iterator[Finding]:
    """Processor, cores, memory.

    Args:
        root: where /proc and /sys are.
    """
    yield good("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield _cores(root)
    yield _memory(root)


def instructions() -> Iterator[Finding]:
    """Vector instructions, on which the last bits of results depend."""
    numpy, torch = import_module("numpy"), import_module("torch")
    yield good("torch", f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    about = numpy.show_config(mode="dicts")
    simd = about.get("SIMD Extensions", {})
    used = [*simd.get("baseline", []), *simd.get("found", [])]
    yield good("numpy", f"{numpy.__version__}, {', '.join(used) or 'no vector instructions'}")
    blas = about.get("Build Dependencies", {}).get("blas", {})
    text = f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
    if find_spec("threadpoolctl") is not None:  # scikit-learn brings it
        libraries = import_module("threadpoolctl").threadpool_info()
        kernels = {one["architecture"] for one in libraries if "architecture" in one}
        text += f", kernels for {' and '.join(sorted(kernels))}" if kernels else ""
    yield good("BLAS", text)


def gpu(root: Path = Path("/")) -> Iterator[Finding]:
    """The GPU and what uses it.

    Args:
        root: where /dev is.
    """
    torch = import_module("torch")
    there = (root / "dev/nvidiactl").exists()
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(0)
        memory = f"{about.total_memory / 1e9:.0f} GB"
        yield good("GPU", f"{about.name}, {memory}, CUDA {torch.version.cuda}")
        if find_spec("triton") is None:
            yield Finding(
                "Triton",
                State.WARNING,
                "missing: masks are made on the processor",
                "pip install '.[gpu]'",
            )
        else:
            yield good("Triton", "there: masks are made on the GPU")
    elif there and torch.version.cuda is None:
        yield Finding(
            "GPU",
            State.WARNING,
            f"there is an NVIDIA GPU, and this torch ({torch.__version__}) is built without CUDA",
            "install the CUDA build: https://pytorch.org/get-started/locally/",
        )
    elif there:
        yield Finding(
            "GPU",
            State.WARNING,
            f"there is an NVIDIA GPU that torch, built for CUDA {torch.version.cuda}, cannot use",
            "check the driver with nvidia-smi",
        )
    else:
        yield Finding("GPU", State.ABSENT, "none that CUDA can use; everything works without")


def places(cache: Path, root: Path = Path("/")) -> Iterator[Finding]:
    """Folders that are written to.

    Args:
        cache: the folder of cached data.
        root: where /proc is.
    """
    mounts = _mounts(root)
    for topic, path, what in (
        ("this folder", Path.cwd(), "runs and ledgers go here"),
        ("temp folder", Path(tempfile.gettempdir()), "benchmarks and Ray write here"),
        ("cache", cache, "data with data.cache = true"),
    ):
        yield _place(topic, path, what, mounts)


def _cores(root: Path) -> Finding:
    there = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    text = f"{usable} usable" + (f" of {there}" if usable != there else "")
    quota = cpu_quota(root)
    if quota is None or quota >= usable:
        return good("cores", text)
    return Finding(
        "cores",
        State.WARNING,
        f"{text}, but the control group of this process gets the time of {quota:g}",
        f"where there are workers, take --workers {max(1, int(quota))}",
    )


def _memory(root: Path) -> Finding:
    known = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE))
    if "MemTotal" not in known:
        return good("memory", "unknown")
    total, free = int(known["MemTotal"]) * 1024, int(known.get("MemAvailable", 0)) * 1024
    text = f"{total / 1e9:.1f} GB, {free / 1e9:.1f} GB of it free"
    limit = memory_limit(root)
    if limit is not None and limit < total:
        text += f"; this process may use {limit / 1e9:.1f} GB"
        free = min(free, limit)
    if free < _LITTLE_MEMORY:
        return Finding(
            "memory", State.WARNING, text, "the quickstart needs up to 1 GB: end other programs"
        )
    return good("memory", text)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores whose time the control group of this process may use; None without a limit."""
    limits = []
    for folder in _groups(root, "cpu"):
        most, _, period = _read(folder / "cpu.max").partition(" ")
        if not most:
            most = _read(folder / "cpu.cfs_quota_us")
            period = _read(folder / "cpu.cfs_period_us")
        if most.strip().isdecimal() and period.strip().isdecimal() and int(period):
            limits.append(int(most) / int(period))
    return min(limits, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the control group of this process may use; None without a limit."""
    limits = []
    for folder in _groups(root, "memory"):
        text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        if text.strip().isdecimal() and int(text) < _UNLIMITED:
            limits.append(int(text))
    return min(limits, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control group and of those that it is in."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            base = mount
        elif controller in names.split(","):
            base = mount / controller
        else:
            continue
        folder = base / path.strip("/")
        yield folder
        for parent in folder.parents:
            if parent.is_relative_to(base):
                yield parent


def _place(topic: str, path: Path, what: str, mounts: dict[Path, str]) -> Finding:
    there = next((one for one in (path, *path.parents) if one.exists()), path)
    text = f"{path}: {what}"
    if not os.access(there, os.W_OK):
        return Finding(
            topic, State.WARNING, f"{text}; it cannot be written to", "choose another, as in --out"
        )
    free = shutil.disk_usage(there).free
    if free < _LITTLE_SPACE:
        left = f"{free / _MEGABYTE:,.0f} MB are free"
        return Finding(topic, State.WARNING, f"{text}; {left}", "make room")
    kind = kind_of(there, mounts)
    if kind in NETWORKED:
        return Finding(
            topic,
            State.WARNING,
            f"{text}; it is on a network file system ({kind}), where locks may not hold",
            "keep runs, identities and ledgers on a local disk, as in --out and --ledger",
        )
    return good(topic, f"{text}; {free / 1e9:,.0f} GB free" + (f" ({kind})" if kind else ""))


def kind_of(path: Path, mounts: dict[Path, str]) -> str:
    """The type of the file system that holds a path; "" if it is unknown."""
    resolved = path.resolve()
    return next((mounts[one] for one in (resolved, *resolved.parents) if one in mounts), "")


def _mounts(root: Path) -> dict[Path, str]:
    """File systems by where they are mounted; of several in one place the last counts."""
    found = {}
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) > 4 and kinds:
            point = re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), fields[4])
            found[Path(point)] = kinds[0]
    return found


def _read(path: Path) -> str:
    """A file of the system; "" if there is none, as on other systems than Linux."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def terminal() -> Finding:
    """What the terminal can show."""
    encoding = (getattr(sys.stdout, "encoding", None) or "none").lower()
    if encoding.replace("-", "") == "utf8":
        return good("terminal", "shows Greek letters (UTF-8)")
    return Finding(
        "terminal",
        State.WARNING,
        f"its encoding is {encoding}: θ and η are shown as escapes",
        "export PYTHONUTF8=1, if the terminal can show UTF-8",
    )
