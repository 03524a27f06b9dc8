"""Names of the files by which a federation's folder and a site's folder are known.

They stand apart so that a run without any real site needs no cryptography to look for them.
"""

from pathlib import Path

MANIFEST = "manifest.toml"

SITE = "site.toml"


def is_real(folder: Path) -> bool:
    """True for the folder of a real federation, and for that of one real site."""
    return (folder / MANIFEST).is_file() or (folder / SITE).is_file()
