"""Write measured figures into `docs/performance.md`, and nothing that was not measured."""

from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"


def write_section(name: str, text: str, page: Path = PAGE) -> None:
    """Replace what stands between the markers of a section. Raises ValueError when the page lacks them."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    content = page.read_text()
    head, begin_found, rest = content.partition(begin)
    _, end_found, tail = rest.partition(end)
    if not begin_found or not end_found:
        raise ValueError(f"{page.name} lacks the markers {begin} and {end}: put them where the figures belong")
    page.write_text(f"{head}{begin}\n\n{text.strip()}\n\n{end}{tail}")
