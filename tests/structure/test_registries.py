"""What is known by name exists, and reading the names loads nothing."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from fresh_python import loaded_by

from deltafl.fl import registry as learning
from deltafl.fl.data.registry import FORMATS
from deltafl.protocol.quantile.registry import METHODS
from deltafl.protocol.registry import Entry, Registry, load
from deltafl.sim.settings.config import StrategyConfig

ROOT = Path(__file__).parents[2]
LAYERS = ("secagg", "protocol", "fl", "sim")
CONSTANTS = {field.name for field in fields(StrategyConfig)} | {"theta", "learning_rate"}
STRATEGIES = {**learning.WEIGHTED_MEANS, **learning.OTHER_STRATEGIES}
TABLES = {
    "protocol methods": METHODS,
    "fl strategies": STRATEGIES,
    "fl optimizers": learning.SERVER_OPTIMIZERS,
    "fl models": learning.MODELS,
}
PLACES = [
    (table.split()[0], entry.where) for table, known in TABLES.items() for entry in known.values()
] + [("fl", where) for where in learning.FORMATS.values()]


def reaches_up(layer, where):
    named = re.match(r"deltafl\.(\w+)\.", where)[1]
    return LAYERS.index(named) > LAYERS.index(layer)


@pytest.mark.parametrize(("layer", "where"), PLACES, ids=[where for _, where in PLACES])
def test_what_a_table_names_exists_and_lies_no_higher(layer, where):
    assert load(where) is not None
    assert not reaches_up(layer, where)


def test_a_place_that_is_none_and_one_that_is_higher_are_found():
    with pytest.raises(AttributeError, match="Sqd"):
        load("deltafl.fl.strategies.server_optimizer:Sqd")
    with pytest.raises(ModuleNotFoundError, match="sever"):
        load("deltafl.fl.strategies.sever:Sgd")
    assert reaches_up("protocol", "deltafl.fl.strategies.fedavg:FedAvg")


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_made_of_settings(name):
    assert set(STRATEGIES[name].arguments) <= CONSTANTS


def test_a_data_set_says_the_name_by_which_it_is_known():
    assert [kind.name for kind in FORMATS.values()] == list(FORMATS)


def test_a_registry_answers_whether_it_knows_a_name_without_loading_it():
    registry = Registry({"absent": "deltafl.no.such:THING"})
    assert "absent" in registry
    assert "other" not in registry
    assert (list(registry), len(registry)) == (["absent"], 1)
    with pytest.raises(KeyError):
        registry["other"]
    with pytest.raises(ModuleNotFoundError):
        registry["absent"]


def test_an_entry_takes_its_own_values_in_its_own_order():
    entry = Entry("builtins:divmod", ("b", "a"))
    assert entry.build({"a": 3, "b": 17, "c": 0}) == (5, 2)
    with pytest.raises(KeyError, match="'a'"):
        entry.build({"b": 17})


HEAVY = {"torch", "numpy", "scipy", "sklearn", "cryptography", "matplotlib"}


def test_names_and_help_load_nothing_heavy():
    loaded = loaded_by(
        "import contextlib, io\n"
        "from deltafl.sim.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main(['run', '--help'])"
    )
    assert {"deltafl.fl.registry", "deltafl.protocol.quantile.registry"} <= loaded
    assert loaded & HEAVY == set()


def test_the_help_of_no_command_loads_what_trains_or_draws():
    loaded = loaded_by("from deltafl.sim.cli import commands\ncommands(whole=True)")
    assert {"deltafl.sim.view.watch_flags", "deltafl.sim.net.serve_flags"} <= loaded
    assert loaded & {*HEAVY - {"numpy", "cryptography"}, "pandas", "pyarrow", "jinja2"} == set()


@pytest.mark.slow
def test_what_is_loaded_is_seen():
    assert {"numpy", "torch"} <= loaded_by("from deltafl.fl.models import build_model")
