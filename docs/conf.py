"""How the documentation is built: `make docs`, or `sphinx-build docs build/docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext")]

import deltafl  # noqa: E402

project = "deltafl"
author = "The deltafl developers"
project_copyright = author
version = release = deltafl.__version__
html_title = f"deltafl {release}"

extensions = [
    "myst_nb",  # and with it `myst_parser`
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "project_links",
    "drawings",
    "command_help",
    "docstrings",
    "settings_table",
]
exclude_patterns = ["_ext", "examples/flower"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}

# Every build runs the notebooks, elsewhere than in the sources. A cell that fails is a warning with
# its traceback, which fails `make docs`; `nb_execution_raise_on_error` would not say which cell.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_show_tb = True
nb_execution_timeout = 600
nb_merge_streams = True
nb_output_stderr = "remove"  # bars

# Markdown, as code hosts read it
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "github-dark"

# docstrings say `name` for code
default_role = "code"
napoleon_numpy_docstring = False
napoleon_attr_annotations = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

nitpicky = True
_ELSEWHERE = (
    "numpy|collections|fractions|pathlib|torch|flwr|pd|ssl|os|NDArray|ArrayLike|Figure|Entry"
)
nitpick_ignore_regex = [
    ("py:.*", rf"({_ELSEWHERE})(\..*)?"),  # other libraries, whose pages are not in reach
    ("py:class", r"collections\.abc\.Mapping\[str"),
    ("py:exc", r"\w+Error"),  # those of `deltafl.fl` and `deltafl.sim` have no page
    ("py:class", r"deltafl\.(fl|sim)\..*"),
    ("py:class", r"deltafl\.protocol\.update_noise\.(Sizes|NoisyMeans)"),
    ("py:class", r"deltafl\.secagg\.(primitives|session|masks|signing|unmasking)\..*"),
]
