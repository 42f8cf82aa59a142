"""What mkdocs does not do by itself for `make site` (mkdocs.yml names this file as a hook).

The navigation is read from the lists of docs/README.md and of docs/decisions/README.md, so that no
second list of pages exists. A link from a page to a file outside of docs/, such as an example,
leads to a page of the site that shows the file: repository/<path of the file>.

tests/test_docs.py checks the lists and the links without mkdocs.
"""

import os
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
OUTSIDE: Final = "repository"  # the directory of the site for files that are not in docs/
TEXTS: Final = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
FENCED: Final = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
STYLE: Final = ".md-grid { max-width: 78rem; }\n"  # room for tables and for lines of 100 characters
LANGUAGES: Final = {".py": "python", ".toml": "toml", ".sql": "sql", ".yml": "yaml"}

Nav = list[dict[str, Any]]


def nav() -> Nav:
    """Return the navigation as mkdocs wants it: sections with titles and pages."""
    sections: Nav = [{"Home": "README.md"}]
    for line in (DOCS / "README.md").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\*\*(.+?)\*\*", line):
            sections.append({found[1]: []})
        elif found := re.match(r"\* \[([^]]+)\]\(([^)]+\.md)\)", line):
            [pages] = sections[-1].values()
            pages.append({found[1]: found[2]})
    decisions = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    project: Nav = [{name.removesuffix(".md").capitalize(): f"{OUTSIDE}/{name}"} for name in TEXTS]
    rows = re.findall(r"^\| (\d+) \| \[([^]]+)\]\(([^)]+)\)", decisions, re.MULTILINE)
    pages = [{f"{number}. {title}": f"decisions/{name}"} for number, title, name in rows]
    sections.append({"Project": [*project, {"Decisions": ["decisions/README.md", *pages]}]})
    return sections


def place(path: Path) -> str:
    """Return where the site has a file or directory of the repository."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"
    if path.is_dir():
        return f"{name}/index.md"
    return name if path.suffix == ".md" else f"{name}.md"


def targets(markdown: str, source: Path) -> list[Path]:
    """Return the files and directories to which the text of the page `source` has links."""
    found = LINK.findall(FENCED.sub("", markdown))
    return [(source.parent / path).resolve() for path, _ in found if ":" not in path]


def outside() -> set[Path]:
    """Return what the site shows of the files that are not in docs/: what its pages lead to, and
    all below a directory."""
    found: set[Path] = set()
    new = [*(ROOT / name for name in TEXTS), *DOCS.rglob("*.md")]
    while new:
        path = new.pop()
        if path in found or path.name.startswith(("_", ".")):
            continue
        found.add(path)
        if path.is_dir():
            new += path.iterdir()
        elif path.suffix == ".md":
            new += targets(path.read_text(encoding="utf-8"), path)
    return {path for path in found if not path.is_relative_to(DOCS)}


def moved(markdown: str, source: Path) -> str:
    """Return the text of the page `source` with the links that the site has."""
    here = os.path.dirname(place(source))

    def link(found: re.Match[str]) -> str:
        if ":" in found[1]:
            return found[0]
        target = place((source.parent / found[1]).resolve())
        return f"]({os.path.relpath(target, here)}{found[2] or ''})"

    parts = FENCED.split(markdown)
    return "".join(part if at % 2 else LINK.sub(link, part) for at, part in enumerate(parts))


def shown(path: Path) -> str:
    """Return the page that shows a file, or lists a directory, of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        inner = sorted(one for one in path.iterdir() if not one.name.startswith(("_", ".")))
        links = [
            f"* [{one.name}]({os.path.relpath(place(one), place(path) + '/..')})" for one in inner
        ]
        return f"# {name}/\n\n" + "\n".join(links) + "\n"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return moved(text, path)
    return f"# {name}\n\n````{LANGUAGES.get(path.suffix, '')}\n{text}````\n"


def on_config(config: Any) -> Any:
    """Give mkdocs the navigation."""
    config.nav = nav()
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of files that are not in docs/."""
    from mkdocs.structure.files import File

    for path in sorted(outside()):
        files.append(File.generated(config, place(path), content=shown(path)))
    files.append(File.generated(config, "site.css", content=STYLE))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Mend the links of a page of docs/ that lead out of it."""
    source = DOCS / page.file.src_uri
    return moved(markdown, source) if source.exists() else markdown
