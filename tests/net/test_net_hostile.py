"""A server of three honest devices goes on with its rounds among those who keep to no rules."""

import asyncio
import json

import net_hostile
import pytest


@pytest.mark.slow
def test_honest_devices_lose_no_round_by_strangers(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(net_hostile, "COUNTED_S", 1.0)
    monkeypatch.setattr(net_hostile, "CLOSED_S", 0.0)
    fleet = net_hostile.Fleet(tmp_path / "out")
    try:
        assert asyncio.run(net_hostile.play(fleet, 3 * len(net_hostile.KINDS), 10))
    finally:
        fleet.end()
    before, *seen, after = map(json.loads, capsys.readouterr().out.splitlines())
    assert [one["kind"] for one in seen] == list(net_hostile.KINDS)
    assert sum(one["log"][0] for one in seen) < 40
    assert after["most_mb"] < before["most_mb"] + 100
