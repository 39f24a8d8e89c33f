from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.sim.errors import ConfigError
from deltafl.sim.settings.config import ALGORITHMS, RunConfig
from deltafl.sim.settings.config_io import (
    assignment,
    build_config,
    first_difference,
    preset_names,
    preset_text,
    read_config_file,
    read_table,
    to_toml,
)


def refusal(*layers):
    with pytest.raises(ConfigError) as caught:
        build_config(layers)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("federation.theta=1.5", "federation.theta = 1.5: must lie in (0, 1]"),
        ("federation.theta=0", "federation.theta = 0: must lie in (0, 1]"),
        ("federation.theta=nan", "must be a number or a fraction"),
        ("federation.theta=1/0", "must be a number or a fraction"),
        ("federation.theta=half", "federation.theta = 'half': must be a number or a fraction"),
        ("federation.theta=true", "federation.theta = True: must be a number or a fraction"),
        ("federation.rounds=0", "federation.rounds = 0: must be at least 1"),
        ("federation.rounds=2.5", "federation.rounds = 2.5: must be a whole number"),
        ("federation.rounds=many", "federation.rounds = 'many': must be a whole number"),
        ("federation.rounds=true", "federation.rounds = True: must be a whole number"),
        ("training.learning_rate=0", "training.learning_rate = 0: must lie in (0, 1e30]"),
        ("training.learning_rate=inf", "training.learning_rate = inf: must lie in (0, 1e30]"),
        ("training.learning_rate=nan", "training.learning_rate = nan: must lie in (0, 1e30]"),
        ("training.device=gpu", "training.device = 'gpu': must be one of auto, cpu, cuda"),
        ("faults.dropout=1", "faults.dropout = 1: must lie in [0, 1)"),
        ("faults.dropout=-0.1", "faults.dropout = -0.1: must lie in [0, 1)"),
        ("privacy.sums=plain", "privacy.sums = 'plain': must be one of masked, ideal"),
        ("privacy.adversary=lazy", "privacy.adversary = 'lazy': must be one of curious, active"),
        ("privacy.transcript=headers", "must be one of auto, full, sums"),
        ("training.l2=4e38", "training.l2 = 4e+38: must lie in [0, 1e30]"),
        ("strategy.proximal=4e38", "strategy.proximal = 4e+38: must lie in [0, 1e30]"),
        ("strategy.q=1e308", "strategy.q = 1e+308: must lie in [0, 1e6]"),
        ("strategy.tilt=1e308", "strategy.tilt = 1e+308: must lie in (0, 1e6]"),
        ("data.num_classes=300000", "data.num_classes = 300000: must lie in [0, 100000]"),
        ("quantile.max_queries=4096", "quantile.max_queries = 4096: must lie in [0, 4095]"),
        (
            "quantile.weights=counts",
            "quantile.weights = 'counts': must be one of samples, powers-of-two, equal",
        ),
        ("quantile.epsilon=-0.1", "quantile.epsilon = -0.1: must be at least 0"),
        ("quantile.epsilon=inf", "quantile.epsilon = inf: must"),
        ("quantile.min_cohort=-1", "quantile.min_cohort = -1: must be at least 0"),
        ("quantile.min_cohort=2.5", "quantile.min_cohort = 2.5: must be a whole number"),
        ("quantile.warm_start=1", "quantile.warm_start = 1: must be true or false"),
        ("data.source=7", "data.source = 7: must be a text"),
        ("federation.algorithm=fedarvg", "must be one of fedavg, fedprox, q-ffl"),
        ("data.num_classes=1", "data.num_classes = 1: must not be 1, because one class"),
        ("federation.ruonds=3", "unknown setting federation.ruonds: did you mean 'rounds'?"),
        ("quantile.votes=provd", "trusted, proved; did you mean 'proved'?"),
        ('experiment.baselines=["sgd"]', "experiment.baselines = ['sgd']: must be one of"),
        ('experiment.baselines=["fedavg","fedavg"]', "experiment.baselines"),
        ("experiment.baselines=fedavg", "must be a list of texts"),
        ('experiment.baselines=["private-delta-fl"]', "must not be one of experiment.baselines"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(text, expected):
    assert expected in refusal(assignment(text))


def test_the_smallest_cohort_a_private_device_accepts_binds():
    private = assignment("federation.algorithm=private-delta-fl")
    small = assignment("federation.cohort_size=5")
    assert "privacy.min_cohort = 10" in refusal(private, small)
    build_config(
        [small, assignment("federation.algorithm=delta-fl")]
    )  # in clear there is no such device


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds", "must have the form section.key=value"),
        ("rounds=3", "must have the form section.key=value"),
        ("federaton.rounds=3", "did you mean 'federation'?"),
    ],
)
def test_an_assignment_without_a_section_is_refused(text, expected):
    with pytest.raises(ConfigError) as caught:
        assignment(text)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds = 3", "unknown section [rounds]"),
        ("[federtion]\nrounds = 3", "did you mean 'federation'?"),
        ("federation = 3", "must be a section"),
        ("[federation]\nrounds =", "is not valid TOML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(text, expected, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config_file(path)
    assert expected in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        read_config_file(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_config_file(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config_file(tmp_path / "latin.toml")


def test_levels_are_refused_where_nothing_has_them():
    levels = assignment('federation.levels=["0.8", "0.5"]')
    fedavg = assignment("federation.algorithm=fedavg")
    with pytest.raises(ConfigError, match="only delta-fl and private-delta-fl have"):
        build_config([levels, fedavg])
    build_config([levels])
    build_config([levels, assignment('experiment.baselines=["fedavg"]')])


def test_later_layers_win():
    layers = [assignment("federation.rounds=5"), assignment("federation.rounds=6")]
    assert build_config(layers).federation.rounds == 6
    assert build_config(layers).federation.cohort_size == RunConfig().federation.cohort_size


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_valid_described_and_survive_being_written(name):
    text = preset_text(name)
    config = build_config([read_table(text, name)])
    assert text.startswith("# ")
    assert build_config([read_table(to_toml(config), "copy")]) == config


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'quickstart'"):
        preset_text("quikstart")
    with pytest.raises(ConfigError, match="known are"):
        preset_text("../x")


@pytest.mark.slow
@given(
    theta=st.fractions(min_value=Fraction(1, 10**6), max_value=1, max_denominator=10**6),
    learning_rate=st.floats(min_value=1e-300, max_value=1e30),
    source=st.text(st.characters(codec="utf-8", exclude_characters="\x7f")),
    baselines=st.lists(st.sampled_from(ALGORITHMS[1:]), unique=True),
    warm_start=st.booleans(),
)
def test_written_settings_read_back_the_same(theta, learning_rate, source, baselines, warm_start):
    config = build_config(
        [
            {
                "federation": {"theta": str(theta), "algorithm": "fedavg"},
                "training": {"learning_rate": learning_rate},
                "data": {"source": source},
                "experiment": {"baselines": baselines},
                "quantile": {"warm_start": warm_start},
            }
        ]
    )
    assert config.federation.theta == theta
    assert build_config([read_table(to_toml(config), "copy")]) == config


def test_a_file_without_a_setting_takes_its_default():
    lines = to_toml(RunConfig()).splitlines()
    older = [line for line in lines if not line.startswith("adversary")]
    assert len(older) == len(lines) - 1
    assert build_config([read_table("\n".join(older), "older")]) == RunConfig()


def test_a_file_of_before_may_have_settings_that_are_gone():
    older = {"policy": {"max_passes": 1}, "training": {"address": ""}, "data": {"cache": False}}
    assert build_config([older, {"privacy": {"signed": True}}]) == RunConfig()
    with pytest.raises(ConfigError, match=r"training\.address: no backend has one, so leave"):
        build_config([{"training": {"address": "10.0.0.1:6379"}}])
    with pytest.raises(ConfigError, match=r"policy\.max_passes: updates are summed once, so leave"):
        build_config([{"policy": {"max_passes": 2}}])
    with pytest.raises(ConfigError, match=r"privacy\.signed: sessions always are, so leave"):
        build_config([{"privacy": {"signed": False}}])


def test_theta_is_the_decimal_that_was_written():
    assert build_config([assignment("federation.theta=0.8")]).federation.theta == Fraction(4, 5)
    assert build_config([assignment("federation.theta=.8")]).federation.theta == Fraction(4, 5)


def test_the_first_difference_is_named():
    other = build_config([assignment("federation.rounds=7")])
    assert first_difference(RunConfig(), RunConfig()) is None
    assert first_difference(RunConfig(), other) == ("federation.rounds", 100, 7)


def test_arms_are_seeds_by_algorithms_the_main_run_first():
    config = build_config(
        [
            assignment("experiment.num_seeds=2"),
            assignment("experiment.seed=5"),
            assignment('experiment.baselines=["fedavg"]'),
        ]
    )
    arms = [(arm.federation.algorithm, arm.experiment.seed) for arm in config.arms()]
    assert arms == [
        ("private-delta-fl", 5),
        ("private-delta-fl", 6),
        ("fedavg", 5),
        ("fedavg", 6),
    ]
    assert all(len(arm.arms()) == 1 for arm in config.arms())


def test_whether_devices_check_the_search_is_a_setting():
    assert "quantile.search = 'proved': must be one of auto, verified, trusted" in refusal(
        assignment("quantile.search=proved")
    )
    told = refusal(assignment("privacy.min_honest_tail=-1"))
    assert "privacy.min_honest_tail = -1: must be at least 0" in told
    assert RunConfig().quantile.search == "auto"
    assert RunConfig().privacy.min_honest_tail == 2
