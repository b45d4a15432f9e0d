"""The prepared GPU script on a machine without one."""

import pytest

from data_plane.cuda import has_cuda
from tools.gpu_check import main


@pytest.mark.skipif(has_cuda(), reason="there is a CUDA device: the script would run for minutes")
def test_without_a_gpu_the_script_says_so_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """One plain sentence with the reason; neither success nor failure."""
    assert main([]) == 2
    printed = capsys.readouterr().out
    assert printed.startswith("There is no GPU to check here: ")
    assert printed.count("\n") == 1
