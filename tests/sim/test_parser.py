import pytest

from deltafl.sim.cli import main
from deltafl.sim.parser import Parser
from deltafl.sim.settings.given import settings_by_flag


def refused(capsys, *arguments):
    """What the command says to arguments that it does not take."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    captured = capsys.readouterr()
    assert (end.value.code, captured.out) == (2, "")
    assert captured.err.count("\n") == 1
    return captured.err.rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rn"], "deltafl: there is no COMMAND 'rn': did you mean 'run'? See deltafl --help"),
        (["bench", "secag"], "there is no BENCHMARK 'secag': did you mean 'secagg'?"),
        (["bench", "zzz"], "there is no BENCHMARK 'zzz': known are secagg, audit, net"),
        (["bench"], "deltafl bench: the following arguments are required: BENCHMARK; see"),
        (["audit", "lekage"], "deltafl audit: there is no 'lekage': did you mean 'leakage'? See"),
        (["data", "lst"], "deltafl data: there is no ACTION 'lst': did you mean 'list'? See"),
        (["completion", "bsh"], "'bsh' is none of bash, zsh, fish, tcsh; did you mean 'bash'?"),
    ],
)
def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(capsys, arguments, expected):
    if arguments[0] == "completion":
        pytest.importorskip("shtab")
    assert expected in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "--prset=x"], "deltafl run: there is no flag --prset; did you mean --preset? See"),
        (["run", "--theta", "1"], "there is no flag --theta; use --set federation.theta=…; see"),
        (["run", "--methd", "mm"], "there is no flag --methd; use --set quantile.method=…"),
        (["run", "--zzzz"], "deltafl run: there is no flag --zzzz; see deltafl run --help"),
        (["run", "--pre", "x"], "there is no flag --pre"),  # nothing is abbreviated
        (["data", "describe", "x", "--dat", "y"], "deltafl data describe: there is no flag --dat"),
        (["presets", "a", "b"], "unexpected argument 'b'; see deltafl presets --help"),
        (["audit", "x", "--fail-on", "hgh"], "'hgh' is none of info, "),
        (["audit", "x", "--fail-on", "hgh"], "; did you mean 'high'?"),
    ],
)
def test_a_mistyped_flag_is_answered_by_its_own_command(capsys, arguments, expected):
    assert expected in refused(capsys, *arguments)


def test_a_file_is_taken_for_a_file_though_a_command_has_such_a_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lekage").write_bytes(b"")
    assert main(["audit", "lekage"]) == 2
    assert "there is no 'lekage'" not in capsys.readouterr().err


def test_control_characters_do_not_reach_the_terminal(capsys):
    assert "\x1b" not in refused(capsys, "run", "--\x1b[2J")


def test_of_a_flag_that_is_given_twice_the_last_counts_and_a_note_says_so(capsys):
    parser = Parser(prog="deltafl x")
    parser.add_argument("--backend")
    parser.add_argument("--set", action="append")
    options = parser.parse_args(["--backend=a", "--backend=b", "--set=c", "--set=d"])
    assert (options.backend, options.set) == ("b", ["c", "d"])
    assert (
        capsys.readouterr().err == "deltafl: note: --backend is given twice: b counts, and not a\n"
    )


def test_of_a_flag_that_is_repeated_as_it_was_nothing_is_said(capsys):
    parser = Parser(prog="deltafl x")
    parser.add_argument("--backend")
    parser.parse_args(["--backend=a", "--backend=a"])
    assert capsys.readouterr().err == ""


def test_every_setting_has_a_flag_that_somebody_could_try():
    known = settings_by_flag()
    assert known["--cohort-size"] == known["--cohort_size"] == "--set federation.cohort_size=…"
    assert known["--min-cohort"].count(" or ") == 1  # of two sections


PROSE = "The first line of a text that is about as long as the width of a terminal of a hundred.\n"
EXAMPLE = """\
examples:
  deltafl a-command-that-is-not-cut-anywhere-because-somebody-will-copy-it --and --its --flags
      what it does, in a sentence that is longer than the terminal is wide, and so is cut
exit codes: 0 success,
1 nothing
"""


def shown(monkeypatch, columns, text):
    monkeypatch.setenv("COLUMNS", str(columns))
    parser = Parser(prog="deltafl x", description=text)
    return parser.format_help().partition("\n\n")[2].partition("\n\noptions:")[0]


def test_a_wide_terminal_shows_help_as_it_is_written(monkeypatch):
    assert shown(monkeypatch, 120, PROSE + EXAMPLE) == (PROSE + EXAMPLE).rstrip("\n")


def test_in_a_narrow_terminal_prose_is_filled_and_commands_are_not(monkeypatch):
    lines = shown(monkeypatch, 60, PROSE + "\n" + EXAMPLE).splitlines()
    too_long = [line for line in lines if len(line) > 58]
    assert too_long == [EXAMPLE.splitlines()[1]]
    assert "      what it does, in a sentence that is longer than the" in lines
    assert lines[-2:] == ["exit codes: 0 success,", "1 nothing"]


@pytest.mark.parametrize("command", ["run", "audit", "predict", "doctor"])
def test_flags_of_a_command_fit_a_small_screen(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = capsys.readouterr().out.partition("examples:")[0].splitlines()
    assert max(map(len, lines)) <= 80
    if command in ("run", "doctor"):
        assert len(lines) <= 40
