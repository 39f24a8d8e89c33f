import shlex
import shutil
import subprocess

import pytest
from fresh_python import loaded_by

shtab = pytest.importorskip("shtab")

from deltafl.sim.cli import TOOLS, commands  # noqa: E402
from deltafl.sim.completion import SHELLS, _parsers, script  # noqa: E402
from deltafl.sim.parser import Parser  # noqa: E402
from deltafl.sim.settings.config_io import preset_names  # noqa: E402

pytestmark = pytest.mark.slow

BASH = shutil.which("bash")


@pytest.fixture(scope="module")
def scripts():
    return {shell: script(shell) for shell in SHELLS}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_every_flag_is_in_the_script(scripts, shell):
    text = scripts[shell]
    for words in TOOLS:
        assert words[-1] in text
    for flag in ("preset", "conformity", "fail-on", "mitigations", "ring-bits", "tls-cert"):
        assert flag in text


def completed(scripts, folder, *words):
    """What bash offers for the last word."""
    body = scripts["bash"] + (
        f"\nCOMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}\n"
        '_shtab_deltafl; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(  # noqa: S603 (our own script)
        [BASH, "--norc", "-s"],
        input=body,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["deltafl", "ru"], {"run"}),
        (["deltafl", "bench", "se"], {"secagg"}),
        (["deltafl", "run", "--pre"], {"--preset"}),
        (["deltafl", "run", "--preset", ""], set(preset_names())),
        (["deltafl", "run", "--sums", ""], {"masked", "ideal"}),
        (["deltafl", "run", "--data", "my"], {"my.npz"}),
        (["deltafl", "run", "--out", "ru"], {"runs"}),
        (["deltafl", "audit", "ru"], {"runs"}),
        (["deltafl", "audit", "lea"], {"leakage"}),
        (["deltafl", "audit", "leakage", "--mit"], {"--mitigations"}),
        (["deltafl", "audit", "runs", "--fail-on", "hi"], {"high"}),
        (["deltafl", "bench", "secagg", "--graph", ""], {"complete", "sparse"}),
        (["deltafl", "data", "fetch", "hea"], {"heart"}),
        (["deltafl", "attack", "model-incons"], {"model-inconsistency"}),
        (["deltafl", "zzz"], set()),
    ],
)
def test_bash_offers_what_can_follow(scripts, tmp_path, words, expected):
    (tmp_path / "my.npz").write_bytes(b"")
    (tmp_path / "runs").mkdir()
    assert completed(scripts, tmp_path, *words) == expected


def test_the_parsers_are_those_of_the_commands():
    parser = commands(whole=True)
    options = parser.parse_args(["bench", "secagg", "--clients", "7"])
    assert options.clients == 7


def test_help_of_every_command_is_filled_to_the_terminal():
    for words, parser in _parsers(commands(whole=True), ()):
        assert parser.formatter_class is Parser(prog="x").formatter_class, words


def test_no_other_command_loads_what_makes_scripts():
    assert "shtab" not in loaded_by("import deltafl.sim.cli, deltafl.sim.run.cli")
