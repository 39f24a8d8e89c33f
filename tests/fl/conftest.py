import pytest
import torch
from torch_threads import single


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    with single():
        yield


def pytest_runtest_setup():
    """What draws from torch's own generator draws alike, whichever tests ran before."""
    torch.manual_seed(0)
