import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors on many threads mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_runtest_setup():
    """What draws from torch's own generator draws alike, whichever tests ran before."""
    torch.manual_seed(0)
