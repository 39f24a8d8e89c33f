"""The numbers of parameters that are known beforehand are those of the models that are built."""

import pytest

from deltafl.fl.models import build_model
from deltafl.fl.parameters import num_parameters
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import ConfigError
from deltafl.sim.plan.plan import known_data, known_parameters
from deltafl.sim.run.fitting import known_of
from deltafl.sim.settings.config_io import build_config

SHAPES = {
    "digits": ((8, 8), 10),
    "unipen62.npz": ((28, 28), 62),
    "femnist": ((28, 28), 62),
    "qmnist": ((28, 28), 10),
    "synthetic-sent140": ((50,), 2),
    "digits-by-writer": ((8, 8), 10),
    "synthetic-emnist": ((28, 28), 62),
}


def config_of(source, model, **data):
    return build_config([{"data": {"source": source, **data}, "model": {"name": model}}])


@pytest.mark.parametrize("model", ["linear", "logistic", "logistic-bias", "convnet"])
@pytest.mark.parametrize("source", SHAPES)
def test_a_model_has_as_many_parameters_as_are_known(source, model):
    shape, classes = SHAPES[source]
    try:
        built = build_model(model, input_shape=shape, num_classes=classes, seed=0)
    except ValueError:  # these data do not fit this model
        return
    assert known_parameters(config_of(source, model)) == num_parameters(built)


@pytest.mark.parametrize("source", ["digits", "synthetic-emnist", "synthetic-sent140"])
def test_data_that_come_without_files_are_as_they_are_known(source):
    config = config_of(source, "linear")
    known, read = known_data(config), known_of(build_dataset(config.data))
    assert (known.num_classes, known.input_shape) == (read.num_classes, read.input_shape)
    assert known.is_tokens == read.is_tokens
    assert known.num_devices is None


def test_settings_that_give_the_classes_win():
    assert known_parameters(config_of("digits", "linear", num_classes=12)) == 64 * 12


@pytest.mark.parametrize(
    ("source", "model", "more"),
    [
        ("data.csv", "linear", {}),
        ("digits", "gru", {}),
        ("digits", "convnet", {}),
        ("synthetic-sent140", "lstm", {"features": "tokens"}),
    ],
)
def test_what_is_not_known_is_asked_for(source, model, more):
    with pytest.raises(ConfigError, match="--parameters N"):
        known_parameters(config_of(source, model, **more))
