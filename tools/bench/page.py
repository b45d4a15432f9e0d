"""Write measured figures into `docs/performance.md`, and nothing that was not measured."""

from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"


def write_section(name: str, text: str, page: Path = PAGE) -> None:
    """Replace what stands between the markers of a section. Raises ValueError when the page lacks them."""
    page.write_text(with_section(page.read_text(), name, text, page_name=page.name))


def with_section(content: str, name: str, text: str, *, page_name: str) -> str:
    """A page's content with another text in a section. Raises ValueError when it lacks the section's markers."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, begin_found, rest = content.partition(begin)
    _, end_found, tail = rest.partition(end)
    if not begin_found or not end_found:
        raise ValueError(f"{page_name} lacks the markers {begin} and {end}: put them where the text belongs")
    return f"{head}{begin}\n\n{text.strip()}\n\n{end}{tail}"
