"""Whole first days: what somebody does with files, modules and runs of their own.

Each story is run as its user would, by commands and scripts in processes of their own, in a folder
that holds nothing else. What they are told is looked at, not how it comes about.
"""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.slow
PATIENCE_S = 600


class User:
    """Somebody in a folder, with a shell."""

    def __init__(self, folder):
        self.folder = folder

    def does(self, command, *, code=0):
        """Run a command of `deltafl`; what it prints, errors included."""
        done = subprocess.run(  # noqa: S603 (our own command)
            [sys.executable, "-m", "deltafl", *command],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        told = done.stdout + done.stderr
        assert done.returncode == code, told
        assert "Traceback" not in told
        return told

    def runs(self, script, *, code=0):
        """Run a script of their own; what it prints."""
        (self.folder / "script.py").write_text(textwrap.dedent(script), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "script.py"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout


@pytest.fixture
def user(tmp_path):
    return User(tmp_path)


def visits(sites=24, rows=30, seed=7):
    """What hospitals have: a site, numbers, a text column, a gap, an outcome in words."""
    rng = np.random.default_rng(seed)
    number = sites * rows
    site = np.repeat([f"clinic-{k:02}" for k in range(sites)], rows)
    pressure, age = rng.normal(120, 15, number), rng.integers(18, 90, number)
    shift = np.repeat(rng.normal(0, 10, sites), rows)
    outcome = np.where(pressure + shift > 120, "ill", "well")
    smoker = rng.choice(["yes", "no"], number)
    table = pd.DataFrame(
        {"site": site, "pressure": pressure, "age": age, "smoker": smoker, "outcome": outcome}
    )
    table.loc[5, "pressure"] = None
    return table


def test_a_table_of_ones_own_leads_from_error_to_error_to_a_run(user):
    """Each refusal names the setting that mends it; following them, one comes to a result."""
    visits().to_csv(user.folder / "visits.csv", sep=";", decimal=",")
    command = ["run", "--data", "visits.csv", "--out", "first", "--rounds", "4"]
    for told, mend in (
        ("data.separator=;", ["--set", "data.separator=;"]),
        ("data.user_column=NAME", ["--set", "data.user_column=site"]),
        ("data.label_column=NAME", ["--set", "data.label_column=outcome"]),
        (
            "name the columns of the inputs",
            ["--set", 'data.feature_columns=["pressure","age"]'],
        ),
        ("data.decimal=,", ["--set", "data.decimal=,"]),
        ("data.missing=leave-out", ["--set", "data.missing=leave-out"]),
    ):
        assert told in user.does(command, code=2)
        command += mend
    command += ["--set", "data.standardise=train", "--set", "federation.cohort_size=12"]
    told = user.does(command)
    assert "12 train and 12 test devices" in told
    assert re.search(r"private-delta-fl +\d+\.\d%", told)
    assert "Nothing was found" in user.does(["audit", "first", "--quiet"])


def test_a_folder_with_a_file_for_each_site(user):
    for site, own in visits().drop(columns="smoker").groupby("site"):
        (user.folder / "silos").mkdir(exist_ok=True)
        own.drop(columns="site").to_csv(user.folder / "silos" / f"{site}.csv", index=False)
    sets = ["data.label_column=outcome", "data.missing=leave-out", "data.standardise=train"]
    words = [word for one in sets for word in ("--set", one)]
    command = ["run", "--data", "silos", "--out", "run", "--rounds", "3", *words]
    assert "--set federation.cohort_size=12" in user.does(command, code=2)
    told = user.does([*command, "--set", "federation.cohort_size=12"])
    assert "12 train and 12 test devices" in told


OWN_MODULE = """
    import numpy as np
    from torch import nn
    import deltafl as dfl

    rng = np.random.default_rng(1)
    def device(k):
        x = rng.normal(size=(20, 5)).astype("float32")
        return x, (x[:, k % 2] > 0).astype(int)

    federation = dfl.Federation.from_devices({k: device(k) for k in range(60)}, validation=0.25)
    def network():
        return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))

    tuned = dfl.tune(
        network, federation, grid={"learning_rate": [0.001, 0.3]}, rounds=12, cohort_size=12,
        progress=False, callbacks=[dfl.EarlyStopping(12)], out="grid",
    )
    print(tuned.settings["learning_rate"])
    best = tuned.best
    print(best.best_rounds()[1] <= best.rounds[1])
    new = rng.normal(size=(3, 5))
    print(best.predict(new, best=True).shape)
    print(best.audit().level)
"""


def test_a_module_of_ones_own_is_tuned_and_used(user):
    rate, is_best, shape, level = user.runs(OWN_MODULE).splitlines()
    assert (rate, is_best, shape) == ("0.3", "True", "(3,)")
    assert level in ("low", "open", "clean")


OWN_STRATEGY = """
    import deltafl as dfl

    class ByRoot(dfl.WeightedMean):
        name = "by root"
        has_whole_weights = False
        def share(self, own, round_index):
            return dfl.Share(own.num_samples ** 0.5)

    federation = dfl.Federation.load("digits", num_devices=40)
    mine = dfl.train("linear", federation, dfl.OwnMethod(ByRoot(), private=True), rounds=3,
                     cohort_size=12, progress=False, out="mine")
    print(mine.label, mine.summary["secure_sums"])
"""


def test_a_strategy_of_ones_own_is_summed_and_audited(user):
    assert user.runs(OWN_STRATEGY) == "private-by root 3\n"
    assert "strategy" in user.does(["audit", "mine", "--quiet"])


def test_a_killed_run_goes_on_to_the_same_model(user):
    command = ["run", "--preset", "quickstart", "--rounds", "8", "--quiet", "--json"]
    sets = ["experiment.num_seeds=1", "experiment.baselines=[]", "privacy.sums=ideal"]
    alone = [word for one in sets for word in ("--set", one)]
    whole = json.loads(user.does([*command, *alone, "--out", "a"]))
    started = subprocess.Popen(  # noqa: S603 (likewise)
        [sys.executable, "-m", "deltafl", *command, *alone, "--out", "b"],
        cwd=user.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + PATIENCE_S
    while len(list(user.folder.glob("b/checkpoints/round-*[1-9].npz"))) < 1:
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(started.pid, signal.SIGKILL)
    started.wait(PATIENCE_S)
    resumed = json.loads(user.does(["run", "--out", "b", "--resume", "--quiet", "--json"]))
    assert resumed["final_model_sha256"] == whole["final_model_sha256"]


SERVICE = """
    from deltafl.secagg import Stage, secure_sum
    incomes = {site: [100 * site, 1] for site in range(12)}
    total = secure_sum(incomes, dropouts={4: Stage.MASK})
    print(total.vector.tolist(), len(total.contributors))
"""


def test_a_service_adds_up_without_seeing(user):
    expected = 100 * (sum(range(12)) - 4)
    assert user.runs(SERVICE) == f"[{expected}, 11] 11\n"


def test_an_auditor_is_handed_a_strangers_comparison(user):
    user.does(["run", "--preset", "quickstart", "--rounds", "3", "--out", "theirs", "--quiet"])
    told = user.does(["audit", "theirs", "--quiet"])
    assert told.rstrip().splitlines()[-1].startswith("Verdict on all 6 runs: ")
    summary = user.folder / "theirs" / "arms" / "fedavg-seed-2" / "summary.json"
    found = json.loads(summary.read_text(encoding="utf-8"))
    found["test_error"]["mean"] = 0.99
    summary.write_text(json.dumps(found), encoding="utf-8")
    told = user.does(["audit", "theirs", "--quiet"], code=1)
    assert "test_error.mean is 0.99 in the summary" in told


FLEET = """\
[data]
feature_columns = ["age", "dose", "pressure"]
label_column = "outcome"
classes = ["none", "mild", "severe"]
means = [50, 2, 120]
scales = [10, 1, 15]
[own]
module = "surgery:net"
[federation]
rounds = 2
cohort_size = 5
theta = "4/5"
evaluate_every = 2
[privacy]
min_cohort = 4
colluding = 0
"""


def test_five_clinics_train_a_module_of_their_own_on_files_of_their_own(user):
    """Each with a process and a file; two lack an outcome. A simulation comes to the same model."""
    rng, sites = np.random.default_rng(3), range(5)
    (user.folder / "surgery.py").write_text(
        "from torch import nn\ndef net():\n    return nn.Linear(3, 3)\n", encoding="utf-8"
    )
    (user.folder / "fleet.toml").write_text(FLEET, encoding="utf-8")
    lines, tables, columns = [], [], ["age", "dose", "pressure"]
    for site in sites:
        outcome = rng.choice(["none", "mild", "severe"][site % 2 :], 30)
        table = pd.DataFrame(rng.normal([50, 2, 120], [10, 1, 15], (30, 3)).round(2))
        table.columns = columns
        table = table.assign(outcome=outcome, note="?")
        table[list(rng.permutation(table.columns))].to_csv(user.folder / f"{site}.csv", index=False)
        tables.append(table.assign(site=f"{site}.csv"))
        told = user.does(["enrol", str(site), "--out", f"{site}.identity"])
        lines += re.findall(rf"^  ({site} [0-9a-f]{{64}})$", told, re.MULTILINE)
    pd.concat(tables).to_csv(user.folder / "all.csv", index=False)
    (user.folder / "devices.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    serving = ["serve", "fleet.toml", "--no-tls", "--listen", "127.0.0.1:0", "--status", "off"]
    serving += ["--devices", "devices.txt", "--out", "net", "--gather", "300"]
    begun = []

    def begins(command):
        one = subprocess.Popen(  # noqa: S603 (our own command)
            [sys.executable, "-m", "deltafl", *command],
            cwd=user.folder,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        begun.append(one)
        return one

    try:
        server = begins(serving)
        url = next(line for line in server.stderr if "ws://" in line).split()[-1]
        for site in sites:
            own = ["--identity", f"{site}.identity", "--data", f"{site}.csv"]
            own += ["--set", "own.module=surgery:net", "--set", "data.split=samples"]
            own += ["--set", "privacy.min_cohort=4", "--set", "privacy.colluding=0"]
            begins(["device", "--server", url, "--devices", "devices.txt", *own])
        told = server.communicate(timeout=PATIENCE_S)[1]
        assert server.returncode == 0, told
        assert re.search(r"after round 2, test error .* of 75 samples of 5 devices", told)
        assert [one.wait(PATIENCE_S) for one in begun] == [0] * 6
    finally:
        for one in begun:
            one.kill()
            one.communicate()
    (nonce,) = re.findall('nonce = "(.+)"', (user.folder / "net/config.toml").read_text())
    simulated = ["run", "fleet.toml", "--data", "all.csv", "--out", "simulated", "--no-plots"]
    for one in ("data.user_column=site", "data.split=samples", f"experiment.nonce={nonce}"):
        simulated += ["--set", one]
    user.does(simulated)
    models = {
        json.loads((user.folder / name / "summary.json").read_text())["final_model_sha256"]
        for name in ("net", "simulated")
    }
    assert len(models) == 1
