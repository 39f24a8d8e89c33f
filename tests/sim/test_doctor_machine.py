from types import SimpleNamespace

import pytest

from deltafl.sim.doctor.findings import State
from deltafl.sim.doctor.machine import gpu, memory


@pytest.mark.parametrize(("free", "state"), [(8_000_000, State.GOOD), (400_000, State.WARNING)])
def test_little_memory_is_a_warning(tmp_path, free, state):
    source = tmp_path / "meminfo"
    source.write_text(f"MemTotal: 16000000 kB\nMemAvailable: {free} kB\n")
    found = memory(source)
    assert found.state is state
    assert found.text.startswith("16.4 GB, ")


def test_where_nothing_is_told_memory_is_unknown(tmp_path):
    assert memory(tmp_path / "meminfo").text == "unknown"


def test_a_gpu_that_torch_cannot_use_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    device = tmp_path / "nvidiactl"
    assert [one.state for one in gpu(device)] == [State.ABSENT]
    device.touch()
    (found,) = gpu(device)
    assert found.state is State.WARNING
    assert "NVIDIA" in found.text


def test_a_gpu_is_named(monkeypatch):
    about = SimpleNamespace(name="A card", total_memory=80_000_000_000)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _number: about)
    (card,) = gpu()
    assert card.state is State.GOOD
    assert card.text.startswith("A card, 80 GB, CUDA ")
