import pytest

from deltafl.sim.settings.config_io import MAX_BYTES, parse_toml, preset_names, preset_text


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_read(name):
    assert parse_toml(preset_text(name))


def test_brackets_and_dots_in_texts_and_comments_cost_nothing():
    text = "# " + "[" * 99 + "\na = '" + "." * 99 + '\'\nb = "\\"' + "[" * 99 + '"\n'
    text += "c = '''\n" + "[.\n" * 99 + "'''\n" + 'd = """\n"" ' + "9" * 99 + '"""\n'
    assert list(parse_toml(text)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = " + "[" * 9 + "]" * 9, "more than 8 levels"),
        ("a." * 8 + "a = 1", "more than 8 levels"),
        ("[" + "a." * 8 + "a]", "more than 8 levels"),
        ("a = " + "9" * 65, "has 65 characters, more than 64"),
        ("a = 0x" + "f" * 5000, "has 5002 characters"),
        ("a = 1e999", "beyond the range of a double"),
        ("a = 1e-999", "beyond the range of a double"),
        ("#" * (MAX_BYTES + 1), "more than 262,144"),
        ('a = "' + "x" * 100 + "\n" + "[" * 999, "."),
        ("a = 1\na = 2", "overwrite"),
    ],
)
def test_what_its_parser_would_choke_on_is_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_toml(text)


def test_what_is_at_the_bounds_is_taken():
    assert parse_toml("a = " + "[" * 8 + "]" * 8 + "\n" + "b." * 7 + "b = 1\n")
    assert parse_toml("a = 0.0\nb = 0e9\nc = inf\nd = " + "0." + "9" * 62 + "\n")["a"] == 0
