"""Whole first days: what somebody does with files, modules and runs of their own.

Each story is run as its user would, by commands and scripts in processes of their own, in a folder
that holds nothing else. What they are told is looked at, not how it comes about.
"""

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import textwrap
import time

import numpy as np
import pandas as pd
import pytest
from records import checkpoint_of, note, said_of, toml_of

from deltafl.sim.errors import UserError
from deltafl.sim.net.certificates import make_certificate

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
    while not has_a_round(user.folder / "b"):
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(started.pid, signal.SIGKILL)
    started.wait(PATIENCE_S)
    resumed = json.loads(user.does(["run", "--out", "b", "--resume", "--quiet", "--json"]))
    assert resumed["final_model_sha256"] == whole["final_model_sha256"]


def has_a_round(path):
    try:
        return bool(checkpoint_of(path).state.round)
    except (UserError, AttributeError):  # it is not there yet
        return False


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
    assert "6 runs. " in told.partition("└")[0]
    arm = user.folder / "theirs" / "arms" / "fedavg-seed-2"
    found = said_of(arm, "summary")
    found["test_error"]["mean"] = 0.99
    note(arm, "summary", found)
    told = user.does(["audit", "theirs", "--quiet"], code=1)
    assert "test_error.mean = 0.99" in told


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


OUTCOMES = ["none", "mild", "severe"]


class Clinics:
    """Five clinics, each with a process and a file, of which two lack an outcome; and a server.

    Args:
        user: whose folder they are in.
        module: the lines of the module that they train.
        settings: of the server.
        own: those of each device, beside.
    """

    def __init__(self, user, module, settings, own=()):
        self.user, self.own, self.running, self.numbers = user, own, {}, {}
        self.url = ""
        (user.folder / "surgery.py").write_text(module, encoding="utf-8")
        (user.folder / "fleet.toml").write_text(settings, encoding="utf-8")
        rng, tables = np.random.default_rng(3), []
        for site in range(5):
            outcome = rng.choice(OUTCOMES[site % 2 :], 30)
            table = pd.DataFrame(rng.normal([50, 2, 120], [10, 1, 15], (30, 3)).round(2))
            table.columns = ["age", "dose", "pressure"]
            table = table.assign(outcome=outcome, note="?")
            mixed = table[list(rng.permutation(table.columns))]
            mixed.to_csv(user.folder / f"{site}.csv", index=False)
            tables.append(table.assign(site=f"{site}.csv"))
            self.enrols(site, site)
        pd.concat(tables).to_csv(user.folder / "all.csv", index=False)

    def enrols(self, site, number):
        """A clinic makes an identity of this number, in place of the one that it had."""
        told = self.user.does(["enrol", str(number), "--out", f"{number}.identity"])
        (line,) = re.findall(rf"^  ({number} [0-9a-f]{{64}})$", told, re.MULTILINE)
        self.numbers[site] = number, line
        self.lists()

    def lists(self):
        """Write the list of devices, and have all that run read it."""
        lines = "".join(f"{line}\n" for _, line in self.numbers.values())
        (self.user.folder / "devices.txt").write_text(lines, encoding="utf-8")
        self.sends(signal.SIGHUP, *self.running)

    def starts(self, name, command):
        """Run a command in a process of its own, which says what it does in a file."""
        with (self.user.folder / f"{name}.log").open("a") as log:
            self.running[name] = subprocess.Popen(  # noqa: S603 (our own command)
                [sys.executable, "-m", "deltafl", *command],
                cwd=self.user.folder,
                stderr=log,
                stdout=subprocess.DEVNULL,
            )

    def serves(self, out, *more):
        listen, ready = self.url.partition("//")[2] or "127.0.0.1:0", r"connect to (wss?://\S+)"
        before = len(re.findall(ready, self.told("server"))) if self.url else 0
        serving = ["serve", "fleet.toml", "--listen", listen, "--status", "off", "--out", out]
        self.starts("server", [*serving, "--devices", "devices.txt", "--gather", "300", *more])
        self.url = self.until("server", ready, before)[-1]

    def joins(self, site, identity=""):
        """A clinic's device starts, with its own identity or another."""
        number, _ = self.numbers[site]
        own = ["--identity", identity or f"{number}.identity", "--data", f"{site}.csv"]
        sets = ["own.module=surgery:net", "data.split=samples", *self.own]
        own += [word for one in sets for word in ("--set", one)]
        own += ["--ca", "ca.pem"] if self.url.startswith("wss") else []
        command = ["device", "--server", self.url, "--devices", "devices.txt", *own]
        self.starts(identity or site, command)

    def sends(self, what, *names):
        for name in names:
            self.running[name].send_signal(what)

    def ends(self, name, what=signal.SIGTERM):
        """Somebody ends a process; how it ended."""
        self.sends(what, name)
        return self.running.pop(name).wait(PATIENCE_S)

    def told(self, name):
        return (self.user.folder / f"{name}.log").read_text(encoding="utf-8")

    def until(self, name, pattern, after=0):
        """Wait until a process has said more of a kind than `after`; all that it has said."""
        end = time.monotonic() + PATIENCE_S
        while len(found := re.findall(pattern, self.told(name))) <= after:
            assert time.monotonic() < end, self.told(name)
            assert self.running[name].poll() is None, self.told(name)
            time.sleep(0.05)
        return found

    def goes_on(self, rounds=2):
        """Wait for rounds that are not lost."""
        played = r"round \d+ of \d+: \d+ sums"
        self.until("server", played, len(re.findall(played, self.told("server"))) + rounds - 1)

    def end_well(self):
        """Wait until all are through with the run."""
        assert {n: one.wait(PATIENCE_S) for n, one in self.running.items()} == dict.fromkeys(
            self.running, 0
        ), self.told("server")
        self.running.clear()

    def close(self):
        for one in self.running.values():
            one.kill()
            one.wait()


@pytest.fixture
def clinics(user):
    """What makes them."""
    made = []

    def make(*args, **options):
        made.append(Clinics(user, *args, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


FOUR = ("privacy.min_cohort=4", "privacy.colluding=0")
MODULE = "from torch import nn\ndef net():\n    return nn.Linear(3, 3)\n"


def test_five_clinics_train_a_module_of_their_own_on_files_of_their_own(user, clinics):
    """A simulation comes to the same model."""
    fleet = clinics(MODULE, FLEET, FOUR)
    fleet.serves("net", "--no-tls")
    for site in range(5):
        fleet.joins(site)
    fleet.end_well()
    assert re.search(
        r"after round 2, test error .* of 75 samples of 5 devices", fleet.told("server")
    )
    (nonce,) = re.findall('nonce = "(.+)"', toml_of(user.folder / "net"))
    simulated = ["run", "fleet.toml", "--data", "all.csv", "--out", "simulated", "--no-plots"]
    for one in ("data.user_column=site", "data.split=samples", f"experiment.nonce={nonce}"):
        simulated += ["--set", one]
    user.does(simulated)
    models = {
        said_of(user.folder / name, "summary")["final_model_sha256"]
        for name in ("net", "simulated")
    }
    assert len(models) == 1


NOISE = 'max_weight = 1\n[dp]\nnoise = "0.5"\nclip = 1\n'
INSISTING = ("dp.noise=0.5", "dp.epsilon_budget=1000", "federation.theta=1")
PACED = """\
import pathlib, time
from torch import nn
class Net(nn.Linear):
    def forward(self, x):
        if pathlib.Path("slowly").exists():
            time.sleep(0.2)
        return super().forward(x)
def net():
    return Net(3, 3)
"""


def shows(url, certificate):
    """Whether a server shows a certificate."""
    host, _, port = url.partition("//")[2].rpartition(":")
    seen = ssl.get_server_certificate((host, int(port)), timeout=PATIENCE_S)
    return seen.split() == certificate.decode().split()


def test_the_whole_life_of_a_fleet(user, clinics):
    """Killed, stopped, started twice, replaced, removed; then a second run with the same devices.

    All sums have noise, which devices insist on and count. Rounds are slow as long as there is a
    file, so that all of it happens within the first run.
    """
    before, after = make_certificate(["127.0.0.1"]), make_certificate(["127.0.0.1"])
    (user.folder / "ca.pem").write_bytes(before.certificate + after.certificate)
    (user.folder / "slowly").touch()
    noisy = FLEET.replace('theta = "4/5"', "theta = 1") + NOISE
    fleet = clinics(PACED, noisy.replace("rounds = 2", "rounds = 80"), (*FOUR, *INSISTING))

    def shown(own):
        (user.folder / "server.pem").write_bytes(own.certificate)
        (user.folder / "server.key").write_bytes(own.key)

    def serves(out, *more):
        secure = ["--tls-cert", "server.pem", "--tls-key", "server.key", "--least-wait", "2"]
        fleet.serves(out, *secure, *more)

    shown(before)
    serves("first")
    for site in range(5):
        fleet.joins(site)
    fleet.goes_on()

    fleet.ends("server", signal.SIGKILL)
    serves("first", "--resume")
    fleet.goes_on()

    fleet.sends(signal.SIGSTOP, 1)
    fleet.until("server", "device 1 has not answered in time")
    time.sleep(3 * 2)  # as long as three lost rounds take, after which it would give up
    fleet.sends(signal.SIGCONT, 1)
    fleet.goes_on()

    own = ["--server", fleet.url, "--ca", "ca.pem", "--devices", "devices.txt", "--data", "2.csv"]
    told = user.does(["device", *own, "--identity", "2.identity"], code=2)
    assert "in use by another process" in told
    shutil.copy(user.folder / "2.identity", user.folder / "copy")
    fleet.joins(2, "copy")
    fleet.until("copy", "this identity is connected already: stop one of the two")
    assert fleet.ends("copy") == 0

    assert shows(fleet.url, before.certificate)
    shown(after)
    fleet.enrols(3, 5)  # all read the list again, and the server its certificate
    fleet.until(3, "not on the server's list")
    assert fleet.ends(3) == 0
    fleet.joins(3)
    fleet.goes_on()
    assert shows(fleet.url, after.certificate)

    del fleet.numbers[4]
    fleet.lists()
    fleet.until(4, "not on the server's list")
    assert fleet.ends(4) == 0
    fleet.goes_on()

    fleet.ends("server", signal.SIGKILL)
    serves("first", "--resume")
    fleet.goes_on()
    (user.folder / "slowly").unlink()
    fleet.end_well()

    (user.folder / "fleet.toml").write_text(noisy, encoding="utf-8")
    serves("second", "--set", "federation.cohort_size=4")
    for site in fleet.numbers:
        fleet.joins(site)
    fleet.end_well()
    for name, rounds in (("first", 80), ("second", 2)):
        user.does(["audit", name, "--quiet"])
        summary = said_of(user.folder / name, "summary")
        assert (summary["rounds"], summary["interrupted_rounds"]) == (rounds, 0)
        assert summary["lost_rounds"] <= (name == "first")  # where a device was stopped
    spent = [int(n) for n in re.findall(r"rounds counted: (\d+);", fleet.told(0))]
    assert 81 <= spent[-1] == max(spent) <= 85  # of both runs; once more where one was begun again
