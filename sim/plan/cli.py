"""`deltafl plan`: what a setting has, before it is run."""

import argparse
import json
import sys
from dataclasses import asdict

from deltafl.sim.errors import ConfigError
from deltafl.sim.flags import add_json
from deltafl.sim.settings.given import (
    RUN_FLAGS,
    add_flags,
    add_run_flags,
    add_settings,
    config_of,
    is_of_own_data,
    quickstart,
    within,
)

_DESCRIPTION = """\
Say what a run would be like, before it is run: how many drop-outs a round
survives, trips and bytes, what the server learns, and what would be possible.
It takes the settings of `deltafl run`, and its flags for them; it reads no data
and trains nothing. Settings that a run would refuse are refused, with those that
would work, as far as that does not depend on the data.
"""

_EPILOG = """\
examples:
  deltafl plan --preset quickstart
  deltafl plan my.toml --set privacy.expected_dropout=0.3
      what another rate of drop-outs asks for
  deltafl plan --preset unipen62-linear --parameters 48608 --json
  deltafl plan --preset quickstart --set attackers.share=0.1 --devices 30
      with the number of devices that train, all is refused that a run refuses

bytes are those of the messages themselves, by the code that writes them, in a
round in which nobody is lost; TLS and WebSocket come on top. a round: searches
are played on losses of several kinds, from equal to very unequal ones and from
untrained to trained models; the mean of each kind is in the range. at most: the
search asks as often as it may.
exit codes: 0 the settings work, 2 they do not.
"""


_MANY = within("[1, inf)")
_FLAGS = {
    "--parameters": ("N", "numbers of the model, where only the data say how many", _MANY),
    "--devices": (
        "N",
        "devices that train; without them, what depends on them is not checked",
        _MANY,
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.usage = "deltafl plan [CONFIG.toml] [--preset NAME] [--data PATH] [more flags]"
    add_settings(parser)
    add_run_flags(parser)
    add_flags(parser, _FLAGS)
    add_json(parser)


def main(options: argparse.Namespace) -> int:
    """Plan and print; the exit code.

    Raises:
        ConfigError: the settings are wrong, or cannot work.
    """
    otherwise = () if is_of_own_data(options) else (quickstart(),)
    config = config_of(options, otherwise=otherwise, flags=RUN_FLAGS)
    if not config.federation.is_private:
        raise ConfigError(
            f"federation.algorithm = {config.federation.algorithm!r} runs in clear: the server "
            "sees what each device sends, and there are no sums to plan; choose one whose name "
            "begins with 'private-'"
        )
    # imported here, so that help and refusals of single settings are instant
    from deltafl.sim.plan.plan import known_data, known_parameters, plan_of
    from deltafl.sim.plan.table import as_text
    from deltafl.sim.run.accounting import note_on_delta

    parameters = options.parameters
    plan = plan_of(
        config,
        known_parameters(config) if parameters is None else parameters,
        known_data(config, options.devices),
    )
    if note := note_on_delta(config.dp, options.devices or config.federation.cohort_size):
        print(f"deltafl: note: {note}", file=sys.stderr)
    if options.json:
        print(json.dumps(asdict(plan), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(as_text(plan))
    return 0
