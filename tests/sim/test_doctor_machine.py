import os

import pytest

from deltafl.sim.doctor import machine
from deltafl.sim.doctor.findings import State
from deltafl.sim.doctor.machine import cpu_quota, gpu, kind_of, memory_limit, places


def put(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_without_control_groups_nothing_is_limited(tmp_path):
    assert cpu_quota(tmp_path) is None
    assert memory_limit(tmp_path) is None


@pytest.mark.parametrize(("text", "expected"), [("150000 100000", 1.5), ("max 100000", None)])
def test_a_quota_of_version_2(tmp_path, text, expected):
    put(
        tmp_path,
        proc__self__cgroup="0::/a/b\n",
        sys__fs__cgroup__a__b__cpu_DOT_max="max 100000\n",
        sys__fs__cgroup__a__cpu_DOT_max=text + "\n",  # of the group around it
    )
    assert cpu_quota(tmp_path) == expected


def test_limits_of_version_1(tmp_path):
    put(
        tmp_path,
        proc__self__cgroup="5:cpu,cpuacct:/box\n4:memory:/box\n",
        sys__fs__cgroup__cpu__box__cpu_DOT_cfs_quota_us="200000\n",
        sys__fs__cgroup__cpu__box__cpu_DOT_cfs_period_us="100000\n",
        sys__fs__cgroup__memory__box__memory_DOT_limit_in_bytes="2000000000\n",
        sys__fs__cgroup__memory__memory_DOT_limit_in_bytes="9223372036854771712\n",
    )
    assert cpu_quota(tmp_path) == 2.0
    assert memory_limit(tmp_path) == 2_000_000_000


def test_a_quota_below_the_cores_is_a_warning_that_says_how_many_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "cpu_quota", lambda _: 2.5)
    found = machine._cores(tmp_path)
    assert (found.state, found.mend) == (
        State.WARNING,
        "where there are workers, take --workers 2",
    )
    monkeypatch.setattr(machine, "cpu_quota", lambda _: None)
    assert machine._cores(tmp_path).state is State.GOOD


@pytest.mark.parametrize(("free", "state"), [(8_000_000, State.GOOD), (400_000, State.WARNING)])
def test_little_memory_is_a_warning(tmp_path, free, state):
    put(tmp_path, proc__meminfo=f"MemTotal: 16000000 kB\nMemAvailable: {free} kB\n")
    assert machine._memory(tmp_path).state is state


def test_the_limit_of_the_group_counts_too(tmp_path, monkeypatch):
    put(tmp_path, proc__meminfo="MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n")
    monkeypatch.setattr(machine, "memory_limit", lambda _: 500_000_000)
    found = machine._memory(tmp_path)
    assert found.state is State.WARNING
    assert "may use 0.5 GB" in found.text


def mounted(root, *lines):
    put(root, proc__self__mountinfo="".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("kind", "state"), [("ext4", State.GOOD), ("nfs4", State.WARNING), ("cifs", State.WARNING)]
)
def test_a_network_file_system_is_a_warning(tmp_path, monkeypatch, kind, state):
    here = tmp_path / "a b"
    here.mkdir()
    monkeypatch.chdir(here)
    point = str(here).replace(" ", "\\040")
    mounted(
        tmp_path,
        "1 0 8:1 / / rw - ext4 /dev/a rw",
        f"2 1 0:9 / {point} rw,relatime shared:1 - {kind} server:/x rw",
    )
    folder, temp, cache = places(tmp_path / "cache", tmp_path)
    assert folder.state is state
    assert ("--ledger" in folder.mend) is (state is State.WARNING)
    assert State.WARNING not in (temp.state, cache.state)


def test_of_nested_mounts_the_innermost_counts(tmp_path):
    mounts = {tmp_path: "nfs", tmp_path / "in": "ext4"}
    (tmp_path / "in").mkdir()
    assert kind_of(tmp_path / "in", mounts) == "ext4"
    assert kind_of(tmp_path, mounts) == "nfs"
    assert kind_of(tmp_path, {}) == ""


def test_a_folder_that_nobody_can_write_to_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert {one.state for one in places(tmp_path, tmp_path)} == {State.WARNING}


def test_a_gpu_that_torch_cannot_use_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert [one.state for one in gpu(tmp_path)] == [State.ABSENT]
    put(tmp_path, dev__nvidiactl="")
    (found,) = gpu(tmp_path)
    assert found.state is State.WARNING
    assert "NVIDIA" in found.text


def test_a_terminal_without_greek_letters_is_a_warning(monkeypatch):
    class Ascii:
        encoding = "ascii"

    monkeypatch.setattr("sys.stdout", Ascii)
    assert machine.terminal().state is State.WARNING
