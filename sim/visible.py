"""Text of others, such as names in files, as it may be shown at a terminal or on a page."""

import sys


def visible(text: str) -> str:
    r"""Write characters that are invisible, or that move others, as escapes.

    These are control characters, which could rewrite what a terminal shows, marks of writing
    direction, separators other than space and newline, and surrogates, which stand for bytes of
    file names and cannot be stored as UTF-8.

    >>> visible("a\u202eb\x1b[2J\udcff\n")
    'a\\u202eb\\x1b[2J\\udcff\n'
    """
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode("ascii")
        for one in text
    )


def on_one_line(text: str) -> str:
    r"""The same with newlines as escapes: no text of others passes for a line of its own.

    >>> on_one_line("a\nb\x85")
    'a\\nb\\x85'
    """
    return visible(text).replace("\n", "\\n")


def say(sentence: str) -> None:
    """Tell a person something, on stderr."""
    print(visible(sentence), file=sys.stderr, flush=True)
