"""Who a node is in a round: what its owner says goes before what the app says."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install '.[flower]'")

from supernode_keys import enrolled

from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import Adversary, ClientId
from deltafl.secagg.identity import identity
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.net.flower.messages import Handover, Layout
from deltafl.sim.net.flower.mod import Member

LAYOUT = Layout((), (), ())
OF_THE_APP = RoundPolicy(min_cohort=17)
ONCE = replace(OF_THE_APP, max_rounds_per_model=1)
LEDGER = Path("node.ledger")


def handed(client, token=b""):
    return Handover("", "", ClientId(client), token, LAYOUT)


def member(config, client=3, token=b""):
    return Member.of(handed(client, token), config, LEDGER, OF_THE_APP)


@pytest.fixture
def files(tmp_path):
    enrolled(tmp_path, [3, 5])
    return {
        "deltafl-identity": str(tmp_path / "device-3.identity"),
        "deltafl-devices": str(tmp_path / "devices.txt"),
    }


def test_with_a_token_the_identity_is_that_of_the_round():
    one = member({}, token=b"t" * 32)
    assert one.own.identity.public == identity(b"t" * 32).public
    assert (one.ledger, one.policy) == (LEDGER, ONCE)
    assert list(one.listed.keys) == [3]


def test_without_one_it_is_the_nodes_own(files):
    one = member(files)
    assert str(one.ledger) == files["deltafl-identity"].replace(".identity", ".ledger")
    assert list(one.listed.keys) == [3, 5]
    assert one.policy == replace(ONCE, adversary=Adversary.ACTIVE)
    assert one.own.entry in Path(files["deltafl-devices"]).read_text()


def test_what_the_owner_insists_on_goes_before_what_the_app_does(tmp_path):
    (tmp_path / "own.toml").write_text('[privacy]\nadversary = "active"\nmin_cohort = 19\n')
    one = member({"deltafl-settings": str(tmp_path / "own.toml")}, token=b"t" * 32)
    assert (one.policy.adversary, one.policy.min_cohort) == (Adversary.ACTIVE, 19)


def test_a_node_with_an_identity_is_nobody_without_it(files):
    """A server that lists no nodes is told nothing."""
    with pytest.raises(ConfigError, match="listed nodes only"):
        member(files, token=b"t" * 32)


def test_a_settings_file_does_not_make_a_node_trust_the_server(files, tmp_path):
    (tmp_path / "own.toml").write_text('[privacy]\nadversary = "curious"\n')
    one = member({**files, "deltafl-settings": str(tmp_path / "own.toml")})
    assert one.policy.adversary is Adversary.ACTIVE


def test_ledgers_of_identities_in_one_folder_are_two(files):
    own = Path(files["deltafl-identity"])
    for name in ("node.1", "node.2"):
        own.with_name(name).write_bytes(own.read_bytes())
        own.with_name(name).chmod(0o600)
    found = {
        member({**files, "deltafl-identity": str(own.with_name(name))}).ledger
        for name in ("node.1", "node.2")
    }
    assert len(found) == 2


@pytest.mark.parametrize("missing", ["deltafl-identity", "deltafl-devices"])
def test_a_node_without_an_identity_says_how_to_get_one(files, missing):
    del files[missing]
    with pytest.raises(ConfigError, match="deltafl enrol"):
        member(files)


def test_a_node_is_nobody_else(files):
    with pytest.raises(ConfigError, match="takes this node for device 5"):
        member(files, client=5)


def test_what_is_no_path_is_refused(files):
    with pytest.raises(ConfigError, match="is no path: 3"):
        member({**files, "deltafl-devices": 3})


def test_settings_that_cannot_be_read_are_no_reason_to_take_the_apps(files, tmp_path):
    with pytest.raises(UserError, match=r"own\.toml"):
        member({**files, "deltafl-settings": str(tmp_path / "own.toml")})


def test_a_node_that_is_not_on_its_own_list_takes_no_part(files):
    Path(files["deltafl-devices"]).write_text("")
    with pytest.raises(ConfigError, match="does not list"):
        member(files)


def test_a_node_answers_for_a_model_once_for_a_lost_round_is_begun_anew():
    one = member({}, token=b"t" * 32)
    assert OF_THE_APP.rounds_per_model > 1
    assert one.policy.rounds_per_model == 1
