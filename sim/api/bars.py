"""Progress bars, in a notebook or a terminal."""

from tqdm import auto, notebook

from deltafl.sim.run.progress import ProgressBars


def bars_here(*, quiet: bool) -> ProgressBars:
    """Bars that are drawn as this place draws them.

    Args:
        quiet: draw nothing.
    """
    if issubclass(auto.tqdm, notebook.tqdm_notebook):
        return ProgressBars(quiet=quiet, new=auto.tqdm)
    return ProgressBars(quiet=quiet)
