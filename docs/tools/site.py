"""Build the site of one version: `python -m docs.tools.site build/site`.

The pages of this version come under OUT/VERSION, where VERSION is that of pyproject.toml or `--version`; OUT itself
leads to the newest version. Versions that OUT has already stay, so that the selector in the header offers them: build
each tag into the same folder, and publish the folder. The generator is Zensical, which reads mkdocs.yml; an unknown
link or anchor ends the build with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from docs.tools.site_pages import ROOT, write_pages

PAGES: Final = ROOT / "build" / "site-pages"
"""`docs_dir` of mkdocs.yml."""
BUILT: Final = ROOT / "build" / "site-new"
"""`site_dir` of mkdocs.yml."""
START: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>specaudit</title>
<meta http-equiv="refresh" content="0; url={version}/">
<p><a href="{version}/">specaudit {version}</a></p>
"""


def generate() -> bool:
    """Write the pages and run the generator; True if it succeeded without a warning."""
    for folder in (PAGES, BUILT):
        shutil.rmtree(folder, ignore_errors=True)
    write_pages(PAGES)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    quiet = done.returncode == 0 and "No issues found" in done.stdout + done.stderr
    if not quiet:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    return quiet


def own_version() -> str:
    """The version of pyproject.toml."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def newest_first(versions: set[str]) -> list[str]:
    """Versions by their numbers."""
    return sorted(versions, key=lambda version: [int(part) for part in re.findall(r"\d+", version)], reverse=True)


def list_versions(out: Path) -> None:
    """Rewrite the list of versions, which the selector reads, and the start page."""
    versions = newest_first({page.parent.name for page in out.glob("*/index.html")})
    listed = [{"version": name, "title": name, "aliases": []} for name in versions]
    (out / "versions.json").write_text(json.dumps(listed), encoding="utf-8")
    (out / "index.html").write_text(START.format(version=versions[0]), encoding="utf-8")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--version", default=own_version())
    arguments = parser.parse_args()
    if not generate():
        return 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(arguments.out / arguments.version, ignore_errors=True)
    shutil.move(BUILT, arguments.out / arguments.version)
    list_versions(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
