"""A fleet of one's own: files that differ, code that is named, and what devices refuse of both."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from federations import Federation, settings, simulate, wired
from records import evaluations_of

from deltafl.fl.errors import DataError
from deltafl.secagg import ClientId, TrustedKeys
from deltafl.secagg.identity import generate
from deltafl.secagg.ledger import MemoryLedger
from deltafl.secagg.randomness import system_randomness
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.net.device import DeviceSide, Notes
from deltafl.sim.net.frames import Decline, Reason, Task, decode, encode
from deltafl.sim.net.identities import OwnIdentity
from deltafl.sim.net.own_data import OwnFile, adopted
from deltafl.sim.net.own_work import work_on
from deltafl.sim.record.record import read_measured
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.run.algorithms import policy_of
from deltafl.sim.run.experiment import Subject
from deltafl.sim.run.own_code import OwnCode
from deltafl.sim.settings.config import DataConfig
from deltafl.sim.settings.config_io import build_config, to_toml
from deltafl.sim.settings.given import with_digests

CODE = """
import torch
from torch import nn
import deltafl

def net():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))

def line():
    return nn.Linear(3, 1)

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none") / 2

def metric(outputs, targets):
    return 1 - outputs.softmax(1)[torch.arange(len(targets)), targets]

def adamw(parameters, rate):
    return torch.optim.AdamW(parameters, lr=rate)

class ByPower(deltafl.WeightedMean):
    name = "by power"
    has_whole_weights = False

    def share(self, own, round_index):
        return deltafl.Share(own.num_samples ** 0.5)
"""
COLUMNS = ("age", "dose", "pressure")
CLASSES = ("none", "mild", "severe")
ORDERS = ((0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1), (2, 0, 1))
SAID = {"feature_columns": COLUMNS, "label_column": "outcome"}


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A package of one's own, that is installed."""
    folder = tmp_path / "installed" / "clinic"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "models.py").write_text(CODE)
    monkeypatch.syspath_prepend(folder.parent)
    for name in ("clinic", "clinic.models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield folder / "models.py"
    for name in ("clinic", "clinic.models"):
        sys.modules.pop(name, None)


def write_sites(folder, *, of_numbers=False):
    """Five files; two lack a class, and all have columns in another order. And one of all."""
    draw, everybody = np.random.default_rng(7), [",".join(("site", *COLUMNS, "outcome"))]
    for site, order in enumerate(ORDERS):
        lines = [",".join(("note", *(COLUMNS[i] for i in order), "outcome"))]
        for n in range(24):
            label = n % 3
            if (site, label) in ((1, 1), (3, 0)):
                continue
            x = (draw.normal(size=3) + label).round(3)
            shown = f"{x.sum():.2f}" if of_numbers else CLASSES[label]
            lines.append(",".join(("?", *(str(x[i]) for i in order), shown)))
            everybody.append(",".join((f"site{site}.csv", *map(str, x), shown)))
        (folder / f"site{site}.csv").write_text("\n".join(lines) + "\n")
    (folder / "all.csv").write_text("\n".join(everybody) + "\n")


class Sites(Federation):
    """Devices with a file each, of which they themselves know nothing but where it is."""

    def started(self, index):
        folder = self.folder
        source = {"source": str(folder / f"site{index}.csv"), "split": "samples"}
        named = {name: path for name, path in self.config.own.paths.items()}
        own = with_digests(build_config([{"data": source, "own": named}]))
        data = OwnFile(own, None, 1000)
        notes = Notes(declined=lambda reason, detail: self.said.append((index, reason, detail)))
        work = work_on(data, ClientId(index), OwnCode.of(own).strategy)
        trusted, ledger = self.trusted, self.ledgers[index]
        return DeviceSide(self.identities[index], trusted, self.policy, ledger, work, notes)


CASES = {
    "classes": ({}, {"classes": CLASSES}, {}),
    "scaled": ({}, {"classes": CLASSES, "means": [0.5, 1, 2], "scales": [1, 2, 0.5]}, {}),
    "module": ({"module": "net"}, {"classes": CLASSES}, {}),
    "all": (
        {"module": "net", "loss": "loss", "metric": "metric", "optimizer": "adamw"},
        {"classes": CLASSES},
        {"learning_rate": 0.01},
    ),
    "strategy": ({"strategy": "ByPower"}, {"classes": CLASSES}, {}),
    "numbers": ({"module": "line"}, {"unit": "mmHg"}, {"loss": "mse", "metric": "mae"}),
}


def of_case(name, folder):
    own, data, training = CASES[name]
    table = {
        "data": {
            **SAID,
            **data,
            "source": str(folder / "all.csv"),
            "user_column": "site",
            "split": "samples",
        },
        "own": {one: f"clinic.models:{place}" for one, place in own.items()},
        "federation": {"cohort_size": 5, "theta": "4/5"},
        "training": training,
        "privacy": {"min_cohort": 4, "colluding": 0},
    }
    algorithm = "private-own" if "strategy" in own else "private-delta-fl"
    return with_digests(settings(algorithm, table))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_five_sites_come_to_what_a_simulation_of_them_does(tmp_path, code, name):
    """Bit for bit, with texts for labels, classes missing, and columns in other orders."""
    write_sites(tmp_path, of_numbers=name == "numbers")
    config = of_case(name, tmp_path)
    own = OwnCode.of(config)
    dataset = Subject(build_dataset(config.data, keeps_whole=True), *own).suited(config).dataset
    Sites.folder = tmp_path
    fleet = Sites(config, dataset, own)
    with wired(fleet):
        state = fleet.play(tmp_path / "net")
    assert not fleet.said
    expected = simulate(config, tmp_path / "simulated", dataset, own)
    assert state.model.tobytes() == expected.model.tobytes()
    assert state.model.any()
    with RunDirectory(tmp_path / "net").read() as record:
        measured = list(read_measured(record))[-1][1]
    assert measured["round"] == 3
    assert measured["devices"] == 5
    assert measured["samples"] == sum(one.num_samples for one in dataset.test)
    assert measured["metric"] == config.training.metric
    assert measured["error"] == pytest.approx(weighted_error(tmp_path / "simulated"), abs=2e-3)


def weighted_error(path):
    test = evaluations_of(path)[-1].test
    weights = [one.num_samples for one in test]
    return np.average([one.error for one in test], weights=weights)


def task(config, **other):
    return Task(bytes(16), 0, 0, to_toml(config).encode(), **other)


@pytest.fixture
def sites(tmp_path):
    write_sites(tmp_path)
    return tmp_path


def session(own=None, **data):
    told = {**SAID, "classes": CLASSES, **data}
    return with_digests(build_config([{"data": told, "own": own or {}}]))


def device(path, own=None, index=None, **data):
    config = build_config([{"data": {"source": str(path), **data}, "own": own or {}}])
    return OwnFile(with_digests(config), index, 1000)


def test_a_file_is_read_as_the_session_says(sites):
    data = device(sites / "site1.csv")(session())
    everybody = build_dataset(
        replace(session().data, source=str(sites / "all.csv"), user_column="site"),
        keeps_whole=True,
        alone=True,
    )
    assert data.samples.x.tobytes() == everybody.train[1].x.tobytes()
    assert data.samples.y.tolist() == everybody.train[1].y.tolist()
    assert set(data.samples.y.tolist()) == {0, 2}
    assert data.shapes.num_classes == 3
    assert data.test is None


@pytest.mark.parametrize(
    ("text", "said", "why"),
    [
        ("age,dose,pressure,outcome\n1,2,3,fatal\n", {}, "a label is 'fatal', and the classes"),
        ("age,dose,outcome\n1,2,mild\n", {}, "no column 'pressure'"),
        ("age,dose,pressure,outcome\n1,2,high,mild\n", {}, "'pressure' has 'high' in row 1"),
        ("age,dose,pressure,outcome\n1,2,,mild\n", {}, "data.missing=leave-out"),
        ("age,dose,pressure,outcome\n1,2,3,mild\n", {"classes": ()}, "labels are texts such as m"),
        ("age,dose,pressure,result\n1,2,3,mild\n", {}, "no column 'outcome'"),
    ],
)
def test_what_does_not_fit_is_declined_by_name_before_anything_is_answered(
    tmp_path, text, said, why
):
    (tmp_path / "mine.csv").write_text(text)
    config, heard = session(**said), []
    own = OwnIdentity(ClientId(0), generate(system_randomness))
    side = DeviceSide(
        own,
        TrustedKeys({own.client: own.identity.public}),
        policy_of(config),
        MemoryLedger(),
        work_on(device(tmp_path / "mine.csv"), own.client),
        Notes(declined=lambda reason, detail: heard.append((reason, detail))),
    )
    reply = decode(side.receive(encode(task(config))))
    assert reply == Decline(bytes(16), Reason.SETTINGS)
    ((_, detail),) = heard
    assert re.search(why, detail)


def test_the_session_may_not_say_otherwise_later(sites):
    file = device(sites / "site1.csv")
    file(session())
    with pytest.raises(ConfigError, match="otherwise of data or model"):
        file(session(classes=CLASSES[::-1]))
    assert file(session()).shapes.num_classes == 3


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        ({"classes": CLASSES}, {"classes": CLASSES[::-1]}),
        ({"feature_columns": ("age",)}, {"feature_columns": COLUMNS}),
        ({"unit": "m"}, {"unit": "km"}),
        ({"num_classes": 3}, {"num_classes": 4}),
        ({"input_shape": (3,)}, {"input_shape": (4,)}),
        ({"means": (1.0,)}, {"means": (2.0,)}),
        ({"scales": (1.0,)}, {}),
        ({"standardise": "device"}, {"standardise": "none"}),
    ],
)
def test_what_a_device_says_of_its_own_has_to_be_what_the_session_says(mine, said):
    (name,) = mine
    with pytest.raises(ConfigError, match=rf"data\.{name} is .* in the session, and .* agree"):
        adopted(DataConfig(**mine), DataConfig(**said))
    own = DataConfig(format="csv", **mine)
    assert getattr(adopted(own, DataConfig(**mine)), name) == mine[name]
    table = {"format": "csv"}
    both = adopted(
        DataConfig(label_column="mine", **table), DataConfig(label_column="theirs", **said)
    )
    assert both.label_column == "mine"
    assert all(getattr(both, key) == value for key, value in said.items())


def test_inputs_without_names_are_not_taken_for_columns(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.ones((2, 3)), y=np.array([0, 1]))
    with pytest.raises(DataError, match=r"says data\.feature_columns = .* the format 'npz'"):
        device(tmp_path / "mine.npz")(session())
    shaped = session(feature_columns=(), input_shape=[3], classes=["0", "2", "1"])
    assert device(tmp_path / "mine.npz")(shaped).samples.y.tolist() == [0, 2]


def test_files_of_a_folder_are_one_devices(sites):
    (sites / "mine").mkdir()
    for number in (0, 1):
        (sites / f"site{number}.csv").rename(sites / "mine" / f"{number}.csv")
    data = device(sites / "mine")(session())
    assert data.samples.id == "mine"
    assert data.samples.num_samples == 24 + 16


def test_constants_of_all_devices_are_known_to_none(sites):
    with pytest.raises(ConfigError, match=r"data\.means, data\.scales"):
        device(sites / "site1.csv")(session(standardise="train"))


def test_data_that_several_devices_share_are_divided_as_in_a_simulation(sites):
    shared = {"user_column": "site", "label_column": "outcome", "classes": CLASSES}
    with pytest.raises(UserError, match="5 training devices: say which"):
        device(sites / "all.csv", **shared)
    with pytest.raises(UserError, match="--index 2: must be from 0 to 1"):
        device(sites / "all.csv", index=2, **shared)
    data = device(sites / "all.csv", index=1, **shared)(session())
    simulated = build_dataset(
        build_config([{"data": {**SAID, **shared, "source": str(sites / "all.csv")}}]).data,
        keeps_whole=True,
    )
    assert data.samples.x.tobytes() == simulated.train[1].x.tobytes()


def test_what_is_not_there_is_said_at_once(sites):
    with pytest.raises(DataError, match="no such file"):
        device(sites / "nowhere.csv")
    with pytest.raises(DataError, match="no column 'result'"):
        device(sites / "site1.csv", label_column="result", classes=CLASSES)


def test_code_is_imported_only_where_the_device_names_it(sites, code):
    said = session(own={"module": "clinic.models:net"})
    with pytest.raises(ConfigError, match=r"--set own\.module=clinic\.models:net"):
        device(sites / "site0.csv")(said)
    assert "clinic.models" not in sys.modules
    other = {"module": "clinic.models:line"}
    with pytest.raises(ConfigError, match=r"here it is 'clinic\.models:line'"):
        device(sites / "site0.csv", own=other)(said)
    assert "clinic.models" not in sys.modules
    assert device(sites / "site0.csv", own={"module": "clinic.models:net"})(said).shapes.own


def test_code_of_other_files_is_declined_by_name(sites, code):
    said = session(own={"module": "clinic.models:net"})
    code.write_text(CODE.replace("Tanh", "ReLU"))
    file = device(sites / "site0.csv", own={"module": "clinic.models:net"})
    with pytest.raises(ConfigError, match="the files of 'clinic' have the digest"):
        file(said)
    unsaid = replace(said, own=replace(said.own, digests=()))
    with pytest.raises(ConfigError, match="and none… at the server"):
        file(unsaid)
    assert "clinic.models" not in sys.modules


def test_a_model_that_does_not_take_the_inputs_is_said(sites, code):
    code.write_text(CODE.replace("Linear(3, 5)", "Linear(4, 5)"))
    own = {"module": "clinic.models:net"}
    with pytest.raises(DataError, match=r"site0.* does not fit the model: .*mat1"):
        device(sites / "site0.csv", own=own)(session(own=own))
