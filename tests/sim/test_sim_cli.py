import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from fresh_python import ROOT, loaded_by
from records import note, said_of, toml_of

from deltafl.sim.cli import main
from deltafl.sim.run import drawing, experiment
from deltafl.sim.run.cli import called
from deltafl.sim.settings.config import ALGORITHMS, MODELS
from deltafl.sim.settings.config_io import build_config, flatten, preset_text

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(capsys, *arguments):
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def snapshot(path):
    return {p: p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def test_a_run_says_what_it_found_and_where(capsys, tiny_arguments, tmp_path):
    code, out, err = call(capsys, "run", *tiny_arguments, "--out=runs/a", "--seed=5")
    assert (code, err) == (0, "")
    assert "4 train and 4 test devices" in out
    assert "delta-fl" in out
    assert "runs/a" in out
    summary = said_of(tmp_path / "runs/a", "summary")
    assert summary["seed"] == 5
    assert f"{summary['test_error']['p90']:.1%}" in out
    assert main(["run", "--resume", "--out=runs/a"]) == 0  # settings come from the directory
    assert capsys.readouterr().out == out


def test_progress_is_shown_on_stderr(capsys, tiny_arguments):
    loud = [argument for argument in tiny_arguments if argument != "--quiet"]
    code, _, err = call(capsys, "run", *loud, "--out=a")
    assert code == 0
    assert "delta-fl seed 1" in err
    assert "4/4" in err
    assert "η=" in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set=federation.theta=1.5"], "federation.theta = 1.5: must lie in (0, 1]"),
        (["--rounds=no"], "federation.rounds = 'no': must be a whole number"),
        (["--device=gpu"], "training.device = 'gpu': must be one of auto, cpu, cuda"),
        (
            ["--backend=clear"],
            "training.backend = 'clear': must be one of auto, reference, batched",
        ),
        (["--sums=clear"], "privacy.sums = 'clear': must be one of masked, ideal"),
        (["--dropout=2"], "faults.dropout = 2: must lie in [0, 1)"),
        (["--seed=-1"], "experiment.seed = -1: must lie in [0, 9007199254740992)"),
        (["--preset=quickstrat"], "did you mean 'quickstart'?"),
        (["absent.toml"], "cannot read the configuration absent.toml"),
        (["--data=absent.npz"], "absent.npz"),
        (["--data=absent"], "absent"),
        (["--data=broken.npz"], "broken.npz"),
        (["--set=federation.cohort_size=5"], "cohort_size = 5 is more than the 4 training devices"),
        (["--set=model.name=convnet"], "model.name = 'convnet'"),
        (["--set=data.min_samples=10000"], "digits"),
        (["--out=busy/file"], "cannot write to busy/file"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_leaves_nothing(
    arguments, expected, capsys, tiny_arguments, tmp_path
):
    (tmp_path / "broken.npz").write_bytes(b"PK")
    (tmp_path / "busy").write_bytes(b"")
    before = snapshot(tmp_path)
    code, out, err = call(capsys, "run", *tiny_arguments, *arguments)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.startswith("deltafl")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert snapshot(tmp_path) == before
    assert not (tmp_path / "runs").exists()


def test_cuda_is_refused_where_there_is_none(capsys, tiny_arguments, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = call(capsys, "run", *tiny_arguments, "--out=a", "--device=cuda")
    assert code == 2
    assert "no CUDA device; use --device cpu" in err


def test_an_existing_directory_is_left_as_it_was(capsys, tiny_arguments, tmp_path):
    """One that is empty is as good as a new one."""
    arguments = ["run", *tiny_arguments, "--out=a"]
    (tmp_path / "a").mkdir()
    assert call(capsys, *arguments)[0] == 0
    before = snapshot(tmp_path)
    for extra, expected in (
        ([], "a already exists: add --resume"),
        (
            ["--resume", "--rounds=3"],
            "a was started with federation.rounds = 4, not 3: a run is made longer, never shorter",
        ),
        (
            ["--resume", "--rounds=5", "--seed=7"],
            "a was started with experiment.seed = ",
        ),
        (["--resume", "--set=federation.theta=1/3"], "federation.theta = 0.5, not 1/3"),
    ):
        code, out, err = call(capsys, *arguments, *extra)
        assert (code, out) == (2, "")
        assert expected in err
        assert snapshot(tmp_path) == before


def own_data(path):
    rng = np.random.default_rng(1)
    user = np.repeat(np.arange(40), 8)
    x = rng.normal(size=(len(user), 3)).astype("float32")
    np.savez(path, x=x, y=(x[:, 0] > 0).astype(int), user=user)


@pytest.mark.parametrize("flag", ["--data=visits.npz", "--set=data.source=visits.npz"])
def test_own_data_do_not_get_the_tuning_of_the_quickstart(capsys, tmp_path, flag):
    """They are trained with the defaults, in a directory of their own name, and a note says so."""
    own_data(tmp_path / "visits.npz")
    flags = ["--rounds=1", "--sums=ideal", "--quiet", "--no-plots"]
    code, out, err = call(capsys, "run", flag, *flags)
    assert (code, "1 seed" in out) == (0, True)
    assert (
        "defaults, with one seed and no baseline; `deltafl presets runs/visits` prints them" in err
    )
    written = tomllib.loads(toml_of(tmp_path / "runs/visits"))
    usual = flatten(build_config([]))
    given = {"data.source", "federation.rounds", "privacy.sums"}
    for section, values in written.items():
        for key in {f"{section}.{name}" for name in values} - given:
            assert flatten(build_config([written]))[key] == usual[key]
    code, _, err = call(capsys, "run", flag, *flags, "--resume")
    assert (code, err) == (0, "")


@pytest.mark.slow
def test_with_a_preset_own_data_get_its_tuning_and_no_note(capsys, tmp_path):
    own_data(tmp_path / "visits.npz")
    flags = ["--rounds=1", "--sums=ideal", "--quiet", "--no-plots", "--set=experiment.num_seeds=1"]
    code, _, err = call(capsys, "run", "--preset=quickstart", "--data=visits.npz", *flags)
    assert (code, err) == (0, "")
    written = tomllib.loads(toml_of(tmp_path / "runs/quickstart"))
    assert written["training"]["learning_rate"] == 0.2
    code, _, err = call(capsys, "run", *flags, "--data=digits", "--out=b")
    assert (code, err) == (0, "")
    assert tomllib.loads(toml_of(tmp_path / "b"))["training"] == written["training"]


def test_a_summary_is_printed_as_json(capsys, tiny_arguments, tmp_path):
    code, out, _ = call(capsys, "run", *tiny_arguments, "--out=a", "--json")
    assert code == 0
    assert json.loads(out) == said_of(tmp_path / "a", "summary")
    code, again, _ = call(capsys, "run", "--out=a", "--resume", "--json")
    assert (code, again) == (0, out)


def test_data_are_named_with_their_format(capsys, tiny_arguments, tmp_path):
    code, _, err = call(capsys, "run", *tiny_arguments, "--data=hart=x", "--out=a")
    assert (code, "did you mean 'heart'?" in err) == (2, True)
    code, _, err = call(capsys, "run", *tiny_arguments, "--data=heart=", "--out=a")
    assert (code, "must have the form heart=PATH" in err) == (2, True)
    code, _, err = call(capsys, "run", *tiny_arguments, "--data=heart=x", "--out=a")
    assert (code, f"{tmp_path / 'x'}: no such folder" in err) == (2, True)


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("training.backend=batchd", "batched"),
        ("model.name=liner", "linear"),
        ("federation.algorithm=fedav", "fedavg"),
        ("quantile.method=bracketd", "bracketed"),
        ('experiment.baselines=["fedav"]', "fedavg"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_one_that_was_meant(capsys, setting, meant):
    code, _, err = call(capsys, "run", f"--set={setting}", "--out=a")
    assert code == 2
    assert err.endswith(f"; did you mean {meant!r}?\n")


def test_foreign_places_are_refused(capsys, tiny_arguments, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("friend")
    (tmp_path / "file").write_text("text")
    for place, expected in (("letters", "is not a run directory"), ("file", "not a directory")):
        code, _, err = call(capsys, "run", *tiny_arguments, f"--out={place}", "--resume")
        assert code == 2
        assert expected in err
    assert snapshot(tmp_path).keys() == {tmp_path / "letters/dear.txt", tmp_path / "file"}


def test_resume_without_a_directory_starts_one(capsys, tiny_arguments, tmp_path):
    assert call(capsys, "run", *tiny_arguments, "--out=new", "--resume")[0] == 0
    (tmp_path / "empty").mkdir()
    assert call(capsys, "run", *tiny_arguments, "--out=empty", "--resume")[0] == 0


def test_a_second_writer_is_refused(capsys, tiny_arguments, tmp_path):
    (tmp_path / "a").mkdir()
    with (tmp_path / "a" / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = call(capsys, "run", *tiny_arguments, "--out=a", "--resume")
    assert code == 2
    assert "a is in use by another process" in err
    assert snapshot(tmp_path).keys() == {tmp_path / "a/.lock"}


def test_changed_data_is_noticed_on_resume(capsys, tiny_arguments, tmp_path):
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(8), 6)

    def write(labels):
        pixels = rng.integers(0, 256, (48, 4, 4), dtype=np.uint8)
        np.savez(tmp_path / "d.npz", x=pixels, y=labels, user=users)

    write(np.arange(48) % 3)
    arguments = ["run", *tiny_arguments, "--data=d.npz", "--out=a"]
    assert call(capsys, *arguments)[0] == 0
    note(tmp_path / "a", "summary", None)
    write((np.arange(48) + 1) % 3)
    code, _, err = call(capsys, *arguments, "--resume")
    assert code == 2
    assert "the data have changed" in err


def test_other_software_is_noted_on_resume(capsys, tiny_arguments, tmp_path):
    arguments = ["run", *tiny_arguments, "--out=a"]
    assert call(capsys, *arguments)[0] == 0
    note(tmp_path / "a", "summary", None)
    versions = said_of(tmp_path / "a", "versions")
    note(tmp_path / "a", "versions", {**versions, "torch": f"0.{versions['torch']}"})
    code, _, err = call(capsys, *arguments, "--resume")
    assert code == 0
    assert "note: this run was started with torch 0." in err


def test_an_interrupted_run_says_how_to_go_on(capsys, tiny_arguments, monkeypatch):
    played = 0

    def interrupt(*arguments):
        nonlocal played
        played += 1
        if played == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    original = drawing.drawn_of
    monkeypatch.setattr(drawing, "drawn_of", interrupt)
    code, out, err = call(capsys, "run", *tiny_arguments, "--out=a b")
    assert (code, out) == (130, "")
    assert "deltafl run --out 'a b' --resume" in err
    code, out, _ = call(capsys, "run", "--resume", "--out=a b", "--quiet")
    assert code == 0
    assert "4 rounds" in out


def test_an_interruption_before_anything_was_written(capsys, tiny_arguments, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "build_dataset", interrupt)
    code, _, err = call(capsys, "run", *tiny_arguments, "--out=a")
    assert (code, err) == (130, "deltafl: interrupted before anything was written\n")


@pytest.mark.parametrize("module", ["deltafl.sim.settings.config", "deltafl.sim.cli", "numpy"])
def test_an_interruption_while_the_command_is_loaded(tmp_path, module):
    """By the module that is being loaded when the signal comes."""
    code = (
        "import runpy, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell may ignore it
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv = ['deltafl', 'run', '--out', 'a', '--quiet']\n"
        "runpy.run_module('deltafl', run_name='__main__')\n"
    )
    done = subprocess.run(  # noqa: S603 (ourselves)
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr in (
        "deltafl: interrupted\n",
        "deltafl: interrupted before anything was written\n",
    )


def test_the_command_is_loaded_where_an_interruption_is_caught():
    """What is installed is what the test above interrupts."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["scripts"] == {"deltafl": "deltafl.__main__:main"}
    loaded = loaded_by("import deltafl.__main__")
    assert {name for name in loaded if name.startswith("deltafl.")} == {"deltafl.__main__"}


def test_a_run_whose_rounds_are_all_lost_fails(capsys, tiny_arguments):
    code, _, err = call(capsys, "run", *tiny_arguments, "--out=a", "--dropout=0.9999")
    assert code == 1
    assert "gave up after round 3: 3 rounds in a row were lost" in err
    assert "all 3 devices of the cohort vanished" in err
    assert "--dropout" in err


def test_dropouts_are_counted(capsys, tiny_arguments, tmp_path):
    assert call(capsys, "run", *tiny_arguments, "--out=a", "--dropout=0.4")[0] == 0
    summary = said_of(tmp_path / "a", "summary")
    assert 0 < sum(summary["dropped_by_stage"].values()) < 12


def test_divergence_fails_with_a_remedy(capsys, tiny_arguments):
    code, _, err = call(
        capsys, "run", *tiny_arguments, "--out=a", "--set=training.learning_rate=1e30"
    )
    assert code == 1
    assert "diverged" in err
    assert "finished rounds are kept in a" in err


def test_what_to_type_next_is_what_was_typed(monkeypatch):
    monkeypatch.setattr("sys.argv", [".venv/bin/deltafl", "run"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert called() == ".venv/bin/deltafl"
    monkeypatch.setattr("sys.argv", ["/a path/deltafl", "run"])
    assert called() == "'/a path/deltafl'"
    monkeypatch.setattr("sys.argv", ["pytest"])
    assert called() == "deltafl"


def shell(command, **environment):
    """What a shell makes of a command line that begins with the command's arguments."""
    return subprocess.run(  # noqa: S602 our own command line
        f"{shlex.quote(sys.executable)} -m deltafl {command}",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("command", "code"), [("--version", 0), ("presets", 0), ("presets nope", 2), ("--help", 0)]
)
def test_a_closed_output_is_no_fault(command, code):
    done = shell(f"{command} >&-")
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_said_in_a_sentence():
    done = shell("presets >/dev/full")
    assert (done.returncode, done.stderr) == (
        1,
        "deltafl: standard output: No space left on device\n",
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_greek_letters_gets_escapes(encoding):
    done = shell("--help", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"Private \u0394-FL" in done.stdout


CORE_ALONE = """
import sys
for name in ("torch", "tqdm", "sklearn", "scipy", "matplotlib", "pyarrow", "jinja2", "PIL"):
    sys.modules[name] = None  # as if it were not installed
from deltafl.sim.cli import main
sys.exit(main(sys.argv[1:]))
"""


def call_the_core_alone(folder, *arguments):
    command = [sys.executable, "-c", CORE_ALONE, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "audit nothing", "bench secagg"])
def test_the_core_alone_says_what_to_install(tmp_path, command):
    done = call_the_core_alone(tmp_path, *command.split())
    assert (done.returncode, done.stdout) == (2, "")
    remedy = "install deltafl with its extra 'sim', as in: pip install '.[sim]'"
    assert done.stderr.endswith(f", which is not installed: {remedy}\n")
    assert done.stderr.startswith("deltafl: this needs ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "serve --preset quickstart --devices d --out o --no-tls --listen localhost:0",
        "device --server ws://localhost:1 --identity i --devices d",
        "bench net",
    ],
    ids=lambda command: command.split()[0],
)
def test_without_connections_it_says_what_to_install(tmp_path, command):
    alone = CORE_ALONE.partition("for name in")
    missing = 'for name in ("starlette", "uvicorn", "websockets"):\n    sys.modules[name] = None\n'
    code = alone[0] + missing + CORE_ALONE.partition("not installed\n")[2]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, *command.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    remedy = "install deltafl with its extra 'net', as in: pip install '.[net]'"
    assert done.stderr.endswith(f", which is not installed: {remedy}\n")


@pytest.mark.slow
def test_the_core_alone_has_a_doctor(tmp_path):
    done = call_the_core_alone(tmp_path, "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert "torch is missing" in done.stdout
    assert "→ pip install '.[sim]'" in done.stdout


def test_the_core_alone_helps_and_lists_presets(tmp_path):
    assert "usage: deltafl" in call_the_core_alone(tmp_path, "--help").stdout
    assert "quickstart" in call_the_core_alone(tmp_path, "presets").stdout


def test_a_preset_is_shown_by_name(capsys):
    code, out, _ = call(capsys, "presets", "unipen62-linear")
    assert (code, out) == (0, preset_text("unipen62-linear"))
    code, out, err = call(capsys, "presets", "unipen62")
    assert (code, out) == (2, "")
    assert "there is no preset 'unipen62'" in err


@pytest.mark.parametrize("name", ["unipen62-linear", "unipen62-convnet"])
def test_a_preset_without_its_data_says_where_they_come_from(capsys, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, "run", "--preset", name)
    assert code == 2
    assert "unipen62.npz: no such file" in err
    assert "`deltafl presets NAME`" in err
    assert "zenodo" in preset_text(name)


def test_presets_are_listed(capsys):
    code, out, _ = call(capsys, "presets")
    assert code == 0
    assert re.search(r"^quickstart +The embedded digits", out, re.MULTILINE)


HEAVY = {"torch", "numpy", "matplotlib", "sklearn", "pyarrow", "pandas", "tqdm", "shtab", "scipy"}


@pytest.mark.parametrize("module", ["deltafl", "deltafl.sim.cli", "deltafl.sim.run.cli"])
def test_what_help_needs_loads_nothing_heavy(module):
    assert not HEAVY & loaded_by(f"import {module}")


@pytest.mark.slow
def test_what_is_heavy_is_seen():
    assert {"torch", "numpy"} <= HEAVY & loaded_by("import deltafl.sim.run.experiment")


def test_help_teaches_and_is_fast():
    code = (
        "import sys, deltafl.sim.cli\n"
        "try: deltafl.sim.cli.main(['run', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'matplotlib', 'sklearn', 'pyarrow'} & sys.modules.keys()\n"
        "sys.exit(f'{heavy} loaded' if heavy else 0)\n"
    )
    done = subprocess.run(  # noqa: S603 (ourselves)
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "examples:" in done.stdout


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("privacy.colluding=0.95", "private-delta-fl cannot run with these settings: "),
        ("privacy.update_resolution_bits=48", "private-delta-fl cannot run with these settings: "),
    ],
)
def test_a_session_that_cannot_be_is_refused_before_anything_is_written(
    setting, expected, capsys, tmp_path
):
    code, _, err = call(capsys, "run", "--preset=quickstart", "--out=a", f"--set={setting}")
    assert code == 2
    assert expected in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["attack", "list"], ["presets"]])
def test_a_reader_who_has_seen_enough_ends_a_command_without_complaint(arguments):
    command = [sys.executable, "-m", "deltafl", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # noqa: S603
    process.stdout.close()
    _, errors = process.communicate()
    assert (process.returncode, errors) == (141, b"")


def test_the_command_alone_explains_itself(capsys):
    code, out, err = call(capsys)
    assert (code, err) == (0, "")
    assert out.startswith("usage: deltafl")


def test_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"deltafl {metadata.version('deltafl')}\n"


def test_resuming_what_is_not_there_starts_nothing(capsys, tmp_path):
    code, _, err = call(capsys, "run", "--resume", "--out=typo")
    assert code == 2
    assert "typo: there is no run to continue: check --out" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workers", ["1025", "100000"])
def test_workers_are_bounded(workers, capsys, tmp_path):
    code, _, err = call(capsys, "run", "--preset=quickstart", "--out=a", f"--workers={workers}")
    assert code == 2
    assert f"training.workers = {workers}" in err
    assert list(tmp_path.iterdir()) == []


def test_a_preset_says_how_to_get_its_data(capsys):
    code, _, err = call(capsys, "run", "--preset=femnist-linear", "--out=a")
    assert code == 2
    assert "deltafl data fetch femnist" in err


def test_percent_signs_are_printed_once(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    out = capsys.readouterr().out
    assert "R|P%" in out
    assert "%%" not in out


def test_the_help_of_run_lists_algorithms_and_models(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["run", "--help"])
    words = capsys.readouterr().out.replace(",", " ").split()
    assert {*ALGORITHMS, *MODELS} <= set(words)
