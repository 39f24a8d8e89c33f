"""`deltafl data`: list, describe, convert and fetch data sets.

A description stands next to the counts of the data set's paper (such as Table 1 of arXiv
2002.11223).
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from deltafl.fl.data.federated import VALIDATION, DeviceData, FederatedDataset
from deltafl.fl.data.lazy import ids_of, sizes_of
from deltafl.fl.data.registry import FORMATS, GLOVE, Download, Format, Published
from deltafl.fl.errors import DataError
from deltafl.fl.nearest import nearest
from deltafl.sim.data.convert import KINDS, convert
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.data.fetch import fetch
from deltafl.sim.errors import UserError
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.record.memory import peak_memory_mb
from deltafl.sim.settings.config_io import Table, assignment, build_config
from deltafl.sim.visible import visible

_GLOVE: Final = "glove"
_SILENT: Final = Published("no paper", 0, 0)

_DESCRIPTION: Final = """\
List the available data sets, download them, and inspect or convert them.

Each data set has a name, which is its format. Most are read from your files; digits and the
synthetic ones need none. A synthetic data set named after a real one is a stand-in: it has the
counts of the real one and nothing else in common with it. Devices are kept and split as in the data
set's paper, unless --set says otherwise.
"""

_EXAMPLES: Final = """\
examples:
  deltafl data list
      every data set with its origin and licence
  deltafl data describe synthetic-emnist
      its counts next to those of the paper's Table 1; no files needed
  deltafl data fetch heart --out data/heart
      download the files of the four hospitals from UCI
  deltafl data describe heart --data data/heart --json
      count devices and samples, as JSON
  deltafl data describe shakespeare --data data/shakespeare --set min_samples=500 --set num_users=50
      with another rule and only some users; --set takes the [data] settings of a run
  deltafl data convert heart --data data/heart --out data/heart-leaf
      write LEAF JSON; with --out FILE.npz, one archive
  deltafl run --data heart=data/heart --set data.rule=published ...
      train on it

exit codes: 0 success, 2 invalid request.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    listing = commands.add_parser("list", help="list all data sets", allow_abbrev=False)
    add_json(listing)

    describe = commands.add_parser(
        "describe",
        help="count devices and samples, next to the paper's counts",
        description="Read a data set and count its classes, devices and samples per device.",
        allow_abbrev=False,
    )
    _add_source(describe)
    add_json(describe)

    to_other = commands.add_parser(
        "convert",
        help="convert a data set to LEAF JSON or .npz",
        description="Read a data set and write it in another file format. LEAF JSON keeps the "
        "split by devices. An .npz file contains all devices without a split; its reader splits "
        "them.",
        allow_abbrev=False,
    )
    _add_source(to_other)
    to_other.add_argument("--out", metavar="PATH", help="where to write it")
    to_other.add_argument(
        "--as",
        dest="kind",
        choices=KINDS,
        help="file format (default: npz if PATH ends in .npz, else leaf)",
    )

    get = commands.add_parser(
        "fetch",
        help="download a data set from its source",
        description="Download the files of a data set, or of 'glove' (word vectors), from their "
        "publisher. Sizes are limited. Hashes are always printed, and checked if the publisher "
        "gives one. A file gets its final name only when it is complete. The licence is printed "
        "before the download starts; by continuing you accept it.",
        allow_abbrev=False,
    )
    get.add_argument("name", metavar="NAME", help="the data set, or glove")
    get.add_argument("--out", metavar="FOLDER", help="where to put it (default: data/NAME)")
    add_quiet(get)
    get.add_argument(
        "--mirror",
        metavar="URL",
        help="download from this folder instead (http, https or file); the files there have their "
        "original names",
    )


def main(options: argparse.Namespace) -> int:
    """Run the command and return the exit code.

    Raises:
        UserError: the request cannot be carried out.
    """
    try:
        if options.action == "list":
            print(_listing(as_json=options.json))
        elif options.action == "fetch":
            _fetch(options.name, options.out, options.mirror)
        elif options.action == "describe":
            kind, dataset = _read(options)
            counts = measured(dataset)
            published = asdict(kind.published) if kind.published else None
            told = {**_facts(kind), "format": kind.name, **counts, "published": published}
            print(_json(told) if options.json else visible(_as_text(kind, counts)))
        else:
            if options.out is None:
                raise UserError("--out is missing: name the file or folder to write")
            kind, dataset = _read(options)
            print(visible("\n".join(_about(kind))))
            print(convert(dataset, Path(options.out), options.kind))
    except DataError as error:
        raise UserError(str(error)) from error
    return 0


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the data set (deltafl data list)")
    parser.add_argument("--data", metavar="PATH", help="where its files are")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="assignments",
        help="change a setting of [data], such as min_samples=50; may be repeated",
    )


def _listing(*, as_json: bool) -> str:
    if as_json:
        return _json([_facts(kind) for kind in FORMATS.values()])
    return "\n".join("\n  ".join(_about(kind)) for kind in FORMATS.values())


def _facts(kind: Format) -> dict[str, object]:
    """What JSON says of a format."""
    return {
        "name": kind.name,
        "title": kind.title,
        "stand_in_for": kind.stands_for or None,
        "needs": kind.needs or None,
        "origin": kind.origin,
        "licence": kind.licence,
        "can_be_fetched": bool(kind.downloads),
        "note": kind.note or None,
    }


def _about(kind: Format) -> list[str]:
    """The same for people: the name and the title, and a line for each other fact."""
    facts = {
        f"THIS IS A STAND-IN for {kind.stands_for}": kind.stands_for
        and "synthetic, only the counts match",
        "from": kind.origin,
        "licence": kind.licence,
        "needs": kind.needs and kind.needs + ("; can be fetched" if kind.downloads else ""),
        "note": kind.note,
    }
    return [
        f"{kind.name}: {kind.title}",
        *(f"{name}: {text}" for name, text in facts.items() if text),
    ]


def measured(dataset: FederatedDataset) -> dict[str, Any]:
    """A data set in numbers; of devices generated on demand, only one is generated.

    Returns:
        What JSON has: the name; the number of classes; shape and stored type of an input; how many
        samples the train devices have, the test devices, and all, each with all of its samples; how
        many devices the rule left out, and the rule; the most memory of this process so far, in MB
        (10^6 bytes).
    """
    sides = {name: _sizes(devices) for name, devices in dataset.sides.items()}
    kept = Counter[str]()
    for sizes in sides.values():
        kept.update(sizes)
    return {
        "name": dataset.name,
        "num_classes": dataset.num_classes,
        "input_shape": dataset.input_shape,
        "input_dtype": dataset.train[0].x.dtype.name,
        **{name: _spread(sizes) for name, sizes in sides.items()},
        "kept": _spread(kept),
        "dropped": dataset.dropped,
        "rule": dataset.rule,
        "peak_memory_mb": peak_memory_mb(),
    }


def _sizes(devices: Sequence[DeviceData]) -> dict[str, int]:
    return dict(zip(ids_of(devices), sizes_of(devices).tolist(), strict=True))


def _spread(sizes: Mapping[str, int]) -> dict[str, float]:
    """How many devices there are, and how many samples each has."""
    values = np.array([*sizes.values()])
    return {
        "devices": len(values),
        "median": float(np.median(values)),
        "smallest": int(values.min()),
        "largest": int(values.max()),
        "samples": int(values.sum()),
    }


def _as_text(kind: Format, counts: Mapping[str, Any]) -> str:
    """A table, with a column for the paper where there is one."""
    published = kind.published
    rows = beside_paper(counts, published)
    width = max(len(name) for name, _, _ in rows) + 2
    head = f"{'':<{width}}{'here':>14}" + (f"{'published':>14}" if published else "")
    lines = [*_about(kind), f"rule: {counts['rule']}", "", head]
    for name, ours, theirs in rows:
        line = f"{name:<{width}}{_number(ours):>14}"
        lines.append((line + f"{_number(theirs):>14}") if published else line)
    shape = " × ".join(map(str, counts["input_shape"]))
    lines += ["", f"inputs: {shape} {counts['input_dtype']}"]
    if published:
        lines.append(f"published: {published.source}")
    return "\n".join(lines)


def beside_paper(
    counts: Mapping[str, Any], published: Published | None
) -> list[tuple[str, float, float | None]]:
    """What is counted, the count, and the paper's."""
    paper = published or _SILENT
    train, kept = counts["train"], counts["kept"]
    held_out = [
        (f"{name} devices", counts[name]["devices"], None) for name in counts.keys() & {VALIDATION}
    ]
    return [
        ("classes", counts["num_classes"], paper.num_classes),
        ("train devices", train["devices"], paper.train_devices),
        *held_out,
        ("test devices", counts["test"]["devices"], paper.test_devices),
        ("samples per train device: median", train["median"], paper.median),
        ("samples per train device: min", train["smallest"], paper.smallest),
        ("samples per train device: max", train["largest"], paper.largest),
        ("devices kept", kept["devices"], None),
        ("samples per kept device: median", kept["median"], None),
        ("samples per kept device: min", kept["smallest"], None),
        ("samples per kept device: max", kept["largest"], None),
        ("samples", kept["samples"], paper.num_samples),
        ("devices dropped", counts["dropped"], None),
        ("peak memory, MB", round(counts["peak_memory_mb"]), None),
    ]


def _number(value: float | None) -> str:
    """Format with thousands separators, and with a decimal only if it is not zero."""
    return "–" if value is None else f"{value:,.1f}".removesuffix(".0")


def _read(options: argparse.Namespace) -> tuple[Format, FederatedDataset]:
    kind = _format(options.name)
    if kind.needs and options.data is None:
        raise UserError(f"{kind.name}: --data is missing; it must name {kind.needs}")
    if not kind.needs and options.data is not None:
        raise UserError(f"{kind.name} is not read from files: leave out --data {options.data}")
    config = build_config(
        [
            _as_published(kind, options.data or kind.name),
            *(assignment(f"data.{text.removeprefix('data.')}") for text in options.assignments),
        ]
    ).data
    return kind, build_dataset(config)


def _as_published(kind: Format, source: str) -> Table:
    """The format's published split as single settings, so that each can be changed."""
    split = kind.split
    return {
        "data": {
            "format": kind.name,
            "source": source,
            "min_samples": split.more_than,
            "test_fraction": str(1 - split.train_fraction),
            "split": split.by.value,
            "num_classes": split.num_classes or 0,
        }
    }


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise UserError(f"there is no data set {name!r}: {nearest(name, FORMATS)}")
    return FORMATS[name]


def _fetch(name: str, to: str | None, mirror: str | None) -> None:
    if name == _GLOVE:
        print("glove: word vectors of glove.6B, 50 dimensions (Pennington et al. 2014)")
        print("licence: Public Domain Dedication and License 1.0")
        downloads: Sequence[Download] = (GLOVE,)
    else:
        kind = _format(name)
        print(visible("\n".join(_about(kind))))
        downloads = kind.downloads
        if not kind.needs:
            raise UserError(f"{name} is not read from files: there is nothing to fetch")
    if not downloads:
        raise UserError(
            f"{name} cannot be fetched because no download address is known; "
            "`deltafl data list` shows which data sets can be fetched"
        )
    folder = Path(to) if to else Path("data") / name
    for download in downloads:
        fetch(download, folder, mirror=mirror, tell=print)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
