import json

import pytest

from deltafl.secagg import DevicePolicy, PeerError, shamir
from deltafl.sim.bench import message_costs
from deltafl.sim.bench.message_costs import MessageBenchmark, largest_roster, measure
from deltafl.sim.cli import main
from deltafl.sim.errors import RunError

TO_DEVICES = ["SessionOpen", "RosterMessage", "ShareDelivery", "OpenSlot", "UnmaskRequest"]
TO_SERVER = ["AdvertiseKeys", "ShareKeys", "ShareReceipt", "MaskedInput", "UnmaskShares"]


@pytest.mark.parametrize("signed", [False, True])
def test_every_kind_of_message_is_measured(signed):
    measured = measure(MessageBenchmark(6, 100, 2, signed=signed))
    extra = [["ConsistencyCheck"], ["ConsistencySignature"]] if signed else [[], []]
    for costs, expected, more in (
        (measured.to_devices, TO_DEVICES, extra[0]),
        (measured.to_server, TO_SERVER, extra[1]),
    ):
        assert set(costs) == {*expected, *more}
        assert all(cost.bytes > 0 and cost.cpu_s >= 0 for cost in costs.values())
    assert measured.to_server["MaskedInput"].bytes > 400
    assert measured.wrong_shares_cpu_s > 0
    assert measured.largest_roster is None


def test_a_wrong_sum_is_not_reported(monkeypatch):
    honest = message_costs.Client.contribute

    def differ(device, vector, binding):
        return honest(device, vector, binding + bytes([device.client_id]))

    monkeypatch.setattr(message_costs.Client, "contribute", differ)
    with pytest.raises(RunError, match="the sum is wrong"):
        measure(MessageBenchmark(6, 100, 1, signed=False))


def test_the_largest_roster_is_just_accepted():
    policy = DevicePolicy(max_slots=3, max_sharing_work=18 * 3 * 40 * 21)
    cost = largest_roster(policy)
    assert cost.bytes > 37 * 4 * 32
    assert cost.cpu_s > 0
    num = 41
    params = MessageBenchmark(num, 1, 3, signed=False).params()
    assert 18 * 3 * num * params.threshold > policy.max_sharing_work
    with pytest.raises(PeerError, match="multiplications to share secrets"):
        policy.check(params)


def test_command(capsys, monkeypatch):
    arguments = ["bench", "messages", "--clients", "6", "--dim", "50"]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["to_server"]["ShareKeys"]["bytes"] > 5 * 2 * 2 * 4 * shamir.NUM_LIMBS
    monkeypatch.setattr(message_costs, "largest_roster", lambda _: message_costs.Cost(9, 0.5))
    assert main([*arguments, "--unsigned", "--largest"]) == 0
    printed = capsys.readouterr().out
    assert "500.00" in printed
    assert "wrong shares of everybody" in printed
    assert "ConsistencyCheck" not in printed
    assert main([*arguments, "--slots", "0"]) == 2
    assert "slots=0 must be at least 1" in capsys.readouterr().err
