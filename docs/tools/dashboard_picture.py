"""The picture of the dashboard of `audit watch`: its panels in Grafana's own components, from a real Prometheus.

`python -m docs.tools.dashboard_picture docs/pictures/watch-dashboard.png` writes it; `make docs-dashboard-picture`
installs the components first (npm packages `@grafana/ui` and `@grafana/data`). No Grafana server takes part: what is
shown is the file's layout, titles, units, legends and expressions, over the traffic of `dashboard_history`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import click

from audit.report.html.render import BROWSERS
from docs.tools.dashboard_history import answers, history, prometheus_of

DASHBOARD: Final = Path(__file__).parents[2] / "docs" / "deploy" / "watch-dashboard.json"
PANELS: Final = Path(__file__).parent / "grafana" / "panels.jsx"
COLUMN, ROW, MARGIN = 58, 34, 16
COLUMNS: Final = 24
DEFINED: Final = ('process.env.NODE_ENV="production"', "global=window")
LOADED: Final = (".svg=text", ".ttf=dataurl", ".woff2=dataurl")
PAGE: Final = """\
<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="panels.css">
<body style="margin: 0; background: #f4f5f5"><div id="panels" style="position: relative; margin: 8px"></div>
<script>window.answers = {answers};</script><script src="panels.js"></script>
"""


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--modules", type=click.Path(path_type=Path, exists=True), required=True, help="The folder node_modules.")
def write(out: Path, modules: Path) -> None:
    """Write the picture to OUT."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    if browser is None or missing:
        raise click.ClickException(f"needs {', '.join(missing) or 'Chromium or Chrome'} in PATH")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with prometheus_of(history(folder / "watch.db"), folder) as address:
            found = answers(address, json.loads(DASHBOARD.read_text()))
        _bundle(modules.resolve(), folder)
        _photograph(browser, found, folder, out.resolve())


def _bundle(modules: Path, folder: Path) -> None:
    """The panels with all that they import, as one script and one style sheet in a folder."""
    shutil.copy(PANELS, folder)
    (folder / "node_modules").symlink_to(modules)
    options = ["--bundle", "--minify", f"--outfile={folder / 'panels.js'}"]
    options += [f"--define:{each}" for each in DEFINED] + [f"--loader:{each}" for each in LOADED]
    subprocess.run([modules / ".bin" / "esbuild", "panels.jsx", *options], check=True, capture_output=True, cwd=folder)


def _photograph(browser: str, found: dict[str, Any], folder: Path, out: Path) -> None:
    page = folder / "panels.html"
    page.write_text(PAGE.replace("{answers}", json.dumps(found).replace("<", "\\u003c")))
    height = max(panel["y"] + panel["h"] for panel in found["panels"]) * ROW + MARGIN
    out.parent.mkdir(parents=True, exist_ok=True)
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--allow-file-access-from-files"]
    options += [f"--user-data-dir={folder}/profile", "--virtual-time-budget=10000"]
    options += [f"--window-size={COLUMNS * COLUMN + MARGIN},{height}", f"--screenshot={out}", page.as_uri()]
    subprocess.run([browser, *options], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    write()
