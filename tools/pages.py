"""`python -m tools.pages`: writes the sections of docs/ that follow from the code; `--check` names what is out of date.

What stands around a section's markers is written by hand.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tokenspeed.commands.options import option_name
from tokenspeed.config import EngineConfig
from tokenspeed.fields import allowed, described
from tokenspeed.server.metric_families import FAMILIES, HTTP_REQUESTS
from tokenspeed.settings import variable_of
from tokenspeed.written import is_size
from tools.bench.page import with_section

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"


def metrics_table() -> str:
    """Every metric beside vLLM's name for the same number."""
    rows = ["| metric | kind | labels | vLLM | meaning |", "| --- | --- | --- | --- | --- |"]
    for family in (*FAMILIES, HTTP_REQUESTS):
        labels = ", ".join(f"`{label}`" for label in family.labels)
        vllm = f"`{family.vllm}`" if family.vllm else ""
        rows.append(f"| `{family.shown_name}` | {family.kind} | {labels} | {vllm} | {family.help} |")
    return "\n".join(rows)


def configuration_tables() -> str:
    """Every setting, in sections."""
    lines: list[str] = []
    defaults = EngineConfig()
    for name in EngineConfig.__struct_fields__:
        section = f"## {EngineConfig.section_of(name)}"
        if section not in lines:
            head = "| setting | may be | default | option | environment | meaning |"
            lines += ["", section, "", head, "| --- | --- | --- | --- | --- | --- |"]
        may_be = allowed(EngineConfig, name).replace("|", "\\|")
        default = written(name, getattr(defaults, name))
        places = f"`{option_name(name)}` | `{variable_of(name)}`"
        lines.append(f"| `{name}` | {may_be} | {default} | {places} | {described(EngineConfig, name)} |")
    return "\n".join(lines)


def written(name: str, value: Any) -> str:
    """A value as a file has it."""
    if value is None:
        return "none"
    if is_size(name):
        return f"`{value // 2**20}M`"
    return f"`{json.dumps(value)}`"


SECTIONS: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "metrics.md": {"metrics": metrics_table},
    "configuration.md": {"configuration": configuration_tables},
}


def renewed(name: str, text: str) -> str:
    """A page with its sections as the code has them now. Raises ValueError when the page lacks a section's markers."""
    for section, render in SECTIONS[name].items():
        text = with_section(text, section, render(), page_name=name)
    return text


def outdated() -> list[str]:
    """The pages that do not say what the code does."""
    return [name for name in SECTIONS if renewed(name, text := (DOCS / name).read_text()) != text]


def main() -> int:
    """Write, or check."""
    arguments = argparse.ArgumentParser(prog="python -m tools.pages", description="Write what follows from the code.")
    arguments.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a page is out of date")
    is_check = arguments.parse_args().check
    names = outdated()
    for name in names:
        print(f"docs/{name} {'is out of date' if is_check else 'written'}")
        if not is_check:
            (DOCS / name).write_text(renewed(name, (DOCS / name).read_text()))
    return int(is_check and bool(names))


if __name__ == "__main__":
    raise SystemExit(main())
