"""The site's pages before they are built: links that leave docs, and the order of versions."""

from __future__ import annotations

import json

import pytest

from docs.tools import site_pages
from docs.tools.site import list_versions, newest_first
from docs.tools.site_pages import outside_fences, write_pages


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A repository with two pages, a page at its root, and a file that is linked."""
    root = tmp_path / "repository"
    for name, text in {
        "docs/index.md": "[rules](../CONTRIBUTING.md#up) [code](../engine/a.py) [room](../engine) [in](how-to/b.md)\n",
        "docs/how-to/b.md": "[rules](../../CONTRIBUTING.md)\n\n```\n[code](../../engine/a.py)\n```\n",
        "docs/tools/c.py": "",
        "CONTRIBUTING.md": "[start](docs/index.md) [how](docs/how-to/b.md#one) [host](https://example.org/docs/x.md)\n",
        "SECURITY.md": "",
        "CHANGELOG.md": "",
        "engine/a.py": "A = 1\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(site_pages, "ROOT", root)
    monkeypatch.setattr(site_pages, "DOCS", root / "docs")
    out = tmp_path / "pages"
    write_pages(out)
    return out


def test_links_that_leave_docs_lead_to_the_site_s_own_copies(small):
    assert (small / "index.md").read_text() == (
        "[rules](CONTRIBUTING.md#up) [code](source/engine/a.py) room [in](how-to/b.md)\n"
    )
    assert (small / "how-to/b.md").read_text() == "[rules](../CONTRIBUTING.md)\n\n```\n[code](../../engine/a.py)\n```\n"
    assert (small / "CONTRIBUTING.md").read_text() == (
        "[start](index.md) [how](how-to/b.md#one) [host](https://example.org/docs/x.md)\n"
    )
    assert (small / "source/engine/a.py").read_text() == "A = 1\n"
    assert not (small / "tools").exists()


def test_blocks_of_code_stay():
    assert outside_fences("a\n```\na\n```\na\n", str.upper) == "A\n```\na\n```\nA\n"


def test_versions_are_sorted_by_their_numbers(tmp_path):
    assert newest_first({"0.9.0", "0.10.0", "0.2.1"}) == ["0.10.0", "0.9.0", "0.2.1"]
    for version in ("0.9.0", "0.10.0"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").touch()
    list_versions(tmp_path)
    assert [one["version"] for one in json.loads((tmp_path / "versions.json").read_text())] == ["0.10.0", "0.9.0"]
    assert 'url=0.10.0/"' in (tmp_path / "index.html").read_text()
