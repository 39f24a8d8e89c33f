"""Links of the pages as they are on a code host, made to fit the site.

On a code host, pages link to any file of the project. Here, a link to a file that the site has a
page for leads to the page; to a folder or a file that it has no page for, only the words are left.
The pages themselves are not changed.
"""

import posixpath
import re
from pathlib import Path

from sphinx.application import Sphinx

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)

PAGES = {
    "CONTRIBUTING.md": "docs/project/contributing.md",
    "CHANGELOG.md": "docs/project/changelog.md",
    "SECURITY.md": "docs/project/security.md",
    "README.md": "docs/index.md",
    "docs/examples": "docs/reference/examples.md",
}
"""Pages that show files which lie elsewhere."""


def fitted(text: str, lies_in: str, shown_in: str, root: Path) -> str:
    """A page whose links fit the site.

    Args:
        text: the page, as it is on a code host.
        lies_in: its folder there, from the top of the project.
        shown_in: the folder of the page that shows it.
        root: the top of the project.
    """

    def changed(link: re.Match[str]) -> str:
        words, target, anchor = link.groups("")
        path = posixpath.normpath(posixpath.join(lies_in, target))
        held = next((page for page in PAGES if path == page or path.startswith(f"{page}/")), None)
        if held and not ((root / path).is_file() and path.startswith("docs/")):
            path = PAGES[held]
        elif not path.startswith("docs/") or (root / path).is_dir():
            return words
        return f"[{words}]({posixpath.relpath(path, shown_in)}{anchor})"

    parts, end = [], 0
    for fence in _FENCE.finditer(text):  # what is in blocks of code stays
        parts += [_LINK.sub(changed, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(changed, text[end:])])


def setup(app: Sphinx) -> dict[str, bool]:
    """Change pages when they are read, and what they include."""
    root = Path(app.confdir).parent

    def read(_app: Sphinx, docname: str, source: list[str]) -> None:
        folder = posixpath.dirname(f"docs/{docname}")
        if Path(app.env.doc2path(docname)).suffix == ".md":
            source[0] = fitted(source[0], folder, folder, root)

    def included(_app: Sphinx, path: Path, _page: str, source: list[str]) -> None:
        lies_in = (Path(app.srcdir) / path).resolve().relative_to(root).parent.as_posix()
        folder = posixpath.dirname(f"docs/{app.env.docname}")  # MyST names the page without it
        source[0] = fitted(source[0], "" if lies_in == "." else lies_in, folder, root)

    app.connect("source-read", read)
    app.connect("include-read", included)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
