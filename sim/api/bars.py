"""Progress bars, in a notebook or a terminal."""

from typing import Any

from tqdm import auto, notebook, tqdm

from deltafl.sim.run.progress import ProgressBars


def bars_here(*, quiet: bool) -> ProgressBars:
    """Bars that are drawn as this place draws them.

    Args:
        quiet: draw nothing.
    """
    if issubclass(auto.tqdm, notebook.tqdm_notebook):
        return ProgressBars(quiet=quiet, new=_in_notebook)
    return ProgressBars(quiet=quiet)


def _in_notebook(*, quiet: bool, **arguments: Any) -> "tqdm[Any]":  # noqa: ANN401 (so are tqdm's)
    return auto.tqdm(disable=quiet, **arguments)
