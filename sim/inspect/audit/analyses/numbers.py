"""On which parts of a question a number of a sum depends.

Sums of two analyses are the same numbers if these parts are the same, whatever else was asked.
"""

from deltafl.sim.analyse.question import HOLDERS, Question


def depends_on(name: str, question: Question) -> str:
    """The parts of a question that a number depends on, besides whose values it is about.

    Args:
        name: of the number, as devices are told it.
        question: in which it was summed.

    >>> depends_on("count", Question("mean", 0, 9)), depends_on("sum", Question("mean", -0.0, 9))
    ('samples, cap 100', 'samples, cap 100, [0.0, 9.0]')
    """
    if name == HOLDERS.name:
        return ""
    rows = f"{question.of}, cap {question.cap}"
    if name == "left_out" or (name == "count" and question.statistic != "count"):
        return rows
    # 0 is added, so that -0.0 is 0.0
    ranged = f"{rows}, [{float(question.low) + 0.0!r}, {float(question.high) + 0.0!r}]"
    return f"{ranged}, bins {question.bins}" if name == "bins" else ranged
