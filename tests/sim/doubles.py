"""Stand-ins for the tests of runs."""


class Silent:
    """Follows a run and says nothing."""

    def begin(self, config, rounds_done):
        pass

    def played(self, event):
        pass

    def evaluated(self, round_number, test_error):
        pass


class Killed(BaseException):
    """Nothing in the product catches it, like SIGKILL."""
