"""What every ledger must do, as a model of a few lines, and histories to hold ledgers to it."""

from hypothesis import strategies as st

from deltafl.secagg.errors import LedgerError

ENTRIES = [bytes([i]) * 32 for i in range(1, 7)]

entries = st.sampled_from(ENTRIES)
steps = st.one_of(
    st.tuples(st.just("admit"), st.lists(entries, max_size=4)),
    st.tuples(st.just("knows"), entries),
    st.tuples(st.just("reopen"), st.none()),
)
histories = st.lists(steps, max_size=16)
capacities = st.integers(1, 5)


class Model:
    """A ledger in the plainest way: a list."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.known = []

    def admit(self, entries):
        if any(entry in self.known for entry in entries):
            return False
        if len(self.known) + len(set(entries)) > self.capacity:
            raise LedgerError
        self.known += dict.fromkeys(entries)
        return True

    def knows(self, entry):
        return entry in self.known


def play(history, ledger, reopened=lambda ledger: ledger):
    """What a ledger answers to each step of a history, and which entries it knows in the end."""
    answers = []
    for name, argument in [*history, *(("knows", entry) for entry in ENTRIES)]:
        if name == "reopen":
            ledger = reopened(ledger)
            continue
        try:
            answers.append(getattr(ledger, name)(argument))
        except LedgerError:
            answers.append("full")
    return answers
