"""Write the table of docs/research/zoo.md: ``python -m tests.privacy.soundness_table``.

The column "before" was measured once, by the same function, with the code of commit a11dff4; it
lies in before.json."""

import json
import re
import warnings
from pathlib import Path

from tests.privacy.architectures import SOUND, UNSOUND
from tests.privacy.test_architectures import verdict

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "research" / "zoo.md"


def main() -> None:
    """Measure every architecture and replace the two tables of the page."""
    warnings.simplefilter("ignore")
    before = json.loads((HERE / "before.json").read_text())
    page = PAGE.read_text()
    for title, zoo in (("sound", SOUND), ("unsound", UNSOUND)):
        rows = ["| architecture | before | change | now | change |", "|---|---|---|---|---|"]
        for name, entry in zoo.items():
            was, moved = before[name]
            way, change = verdict(entry)
            rows.append(f"| {name} | {was} | {_change(moved)} | {way} | {_change(change)} |")
        block = "\n".join(rows)
        page = re.sub(
            rf"(<!-- {title} -->\n).*?(\n<!-- end -->)",
            lambda match, block=block: match[1] + block + match[2],
            page,
            flags=re.DOTALL,
        )
    PAGE.write_text(page)


def _change(value: float | None) -> str:
    if value is None:
        return "-"
    text = f"{value:.2f} C" if value > 1.005 else f"{value:.4f} C"
    return f"**{text}**" if value > 1 + 1e-6 else text


if __name__ == "__main__":
    main()
