"""The optional build: what it names exists, and nothing that it compiles holds a struct."""

from pathlib import Path

import pytest

from tools.compiled import HOT, ROOT, copy, main


def test_the_hot_modules_exist_and_can_be_compiled() -> None:
    """mypyc refuses msgspec's metaclass: a module that gains a struct must leave the list."""
    for name in HOT:
        assert "(Struct" not in (ROOT / name).read_text(), f"{name} defines a struct"


def test_the_copy_is_whole_and_a_folder_is_never_overwritten(tmp_path: Path) -> None:
    """Every hot module is in the copy; a folder that exists is refused."""
    folder = tmp_path / "compiled"
    copy(folder)
    assert all((folder / name).is_file() for name in HOT)
    with pytest.raises(SystemExit):
        main([str(folder)])
