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

BASH, FISH, ZSH = map(shutil.which, ("bash", "fish", "zsh"))

FOLLOWS = [
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
]
"""Words on a line, and what may stand in place of the last; in a folder with my.npz and runs/."""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my.npz").write_bytes(b"")
    (tmp_path / "runs").mkdir()
    return tmp_path


@pytest.fixture(scope="module")
def scripts():
    return {shell: script(shell) for shell in SHELLS}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_every_flag_is_in_the_script(scripts, shell):
    text = scripts[shell]
    for words in TOOLS:
        assert words[-1] in text
    for flag in ("preset", "conformity", "fail-on", "mitigations", "queries", "tls-cert"):
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
@pytest.mark.parametrize(("words", "expected"), FOLLOWS)
def test_bash_offers_what_can_follow(scripts, folder, words, expected):
    assert completed(scripts, folder, *words) == expected


@pytest.mark.skipif(FISH is None, reason="there is no fish")
def test_fish_offers_what_can_follow(scripts, folder):
    asked = "".join(
        f"echo '>'; complete -C {shlex.quote(' '.join(words))}\n" for words, _ in FOLLOWS
    )
    text = scripts["fish"] + asked
    done = subprocess.run(  # noqa: S603 (our own script)
        [FISH, "--no-config", "-c", text],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    offered = [
        {line.split("\t")[0].rstrip("/") for line in one.splitlines() if line}
        for one in done.stdout.split(">\n")[1:]
    ]
    assert offered == [expected for _, expected in FOLLOWS]


# a terminal in which each line is typed, and the Tab key; another key notes what is then there
TYPED_INTO_ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; fpath+=(\$PWD); autoload -Uz compinit; compinit -u -D
  note() { print -r -- \"\$BUFFER\" >> offered; BUFFER= }
  zle -N note; bindkey '^T' note; unsetopt automenu; print > ready"
for i in {1..600}; do [[ -e ready ]] && break; sleep 0.05; done
for line in $LINES_TO_COMPLETE; do
  zpty -wn shell "$line"$'\t\C-t'
done
zpty -w shell "print > done"
for i in {1..600}; do
  [[ -e done ]] && break
  sleep 0.05; while zpty -rt shell seen; do :; done
done
zpty -d shell
"""


@pytest.mark.skipif(ZSH is None, reason="there is no zsh")
def test_zsh_completes_what_can_follow(scripts, folder):
    """Where there is one word to follow, it is there after the Tab key; else, the line stays."""
    (folder / "_deltafl").write_text(scripts["zsh"])
    typed = [" ".join(words) for words, _ in FOLLOWS]
    lines = " ".join(map(shlex.quote, typed))
    subprocess.run(  # noqa: S603 (our own script)
        [ZSH, "-f", "-c", f"LINES_TO_COMPLETE=({lines})\n{TYPED_INTO_ZSH}"],
        cwd=folder,
        capture_output=True,
        timeout=120,
        check=True,
    )
    stands = [line.rstrip("/ ") for line in (folder / "offered").read_text().splitlines()]
    assert stands == [
        " ".join([*words[:-1], *(expected if len(expected) == 1 else words[-1:])]).rstrip()
        for words, expected in FOLLOWS
    ]


def test_the_parsers_are_those_of_the_commands():
    parser = commands(whole=True)
    options = parser.parse_args(["bench", "secagg", "--clients", "7"])
    assert options.clients == 7


def test_help_of_every_command_is_filled_to_the_terminal():
    for words, parser in _parsers(commands(whole=True), ()):
        assert parser.formatter_class is Parser(prog="x").formatter_class, words


def test_no_other_command_loads_what_makes_scripts():
    assert "shtab" not in loaded_by("import deltafl.sim.cli, deltafl.sim.run.cli")
