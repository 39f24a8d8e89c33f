"""The project may only become smaller (`sizes.py` counts, `sizes.toml` says what may be)."""

import pytest
import sizes

MODULE = '''"""What it is for,
and more.
"""

import os  # imports are no code


def one(number):
    """Told."""
    # why
    return (
        number
    )


def _two():
    return os
'''


def written(root, **files):
    """A tree of modules in `protocol`, the names of which have no suffix."""
    for name, text in files.items():
        path = root / "protocol" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.slow
def test_nothing_is_larger_than_the_table_says_and_the_table_follows_the_numbers_down():
    """Run `python -m tests.structure.sizes --write` where something is smaller."""
    now, allowed = sizes.measured(), sizes.table()
    assert (sizes.grown(now, allowed), sizes.stale(now, allowed)) == ([], [])


def test_docstrings_imports_comments_and_blanks_are_no_code(tmp_path):
    written(tmp_path, one=MODULE)
    found = sizes.measured(tmp_path)
    assert found["code"] == {"protocol": 6}
    assert found["modules"] == {"protocol": 1}
    assert found["functions"] == {"median": 3, "ninth_decile": 4, "longest": 5}


def test_a_name_is_public_once_another_module_takes_it(tmp_path):
    user = (
        "from deltafl.protocol import one\nfrom deltafl.protocol.one import _two\n\none.one\n_two\n"
    )
    written(tmp_path, one=MODULE)
    assert sizes.measured(tmp_path)["names"] == {"protocol": 0}
    written(tmp_path, two=user)
    assert sizes.public_names(tmp_path) == {
        (sizes.Path("protocol/one.py"), "one"),
        (sizes.Path("protocol/one.py"), "_two"),
    }
    # what is passed on counts where it is defined, and once
    written(tmp_path, three="from deltafl.protocol.four import one\n", four=MODULE)
    written(tmp_path, five="from deltafl.protocol.three import one\n")
    assert (sizes.Path("protocol/four.py"), "one") in sizes.public_names(tmp_path)
    assert len(sizes.public_names(tmp_path)) == 3


def test_a_number_that_rises_is_named_and_never_written():
    allowed = {"code": {"fl": 10, "gone": 5}}
    now = {"code": {"fl": 11, "new": 1}}
    assert sizes.grown(now, allowed) == [
        "code.fl is 11, and may be 10",
        "code.new is 1, and may be 0",
    ]
    assert sizes.stale(now, allowed) == ["code.gone may be 5, and is 0"]
    assert sizes.lowered(now, allowed) == {"code": {"fl": 10, "new": 1}}
    assert sizes.lowered({"code": {"fl": 9}}, allowed) == {"code": {"fl": 9}}
