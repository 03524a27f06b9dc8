"""Draws the diagrams of the pages as SVG, on a light ground so that they can be read in dark mode:
``python docs/_site/diagrams.py``."""

import math
from pathlib import Path

FIGURES = Path(__file__).parents[1] / "figures"
INK, GREY, PALE, BLUE, GREEN, RED = "#1f2937", "#6b7280", "#f3f4f6", "#0072b2", "#009e73", "#d55e00"

CAPTIONS = {
    "idea": "Records and private models never leave. "
    "A ledger at each hospital counts what its proxies cost.",
    "leaves": "Epsilon bounds what all proxies that ever left say about one record or one patient.",
    "gossip": "Blue: who has a part of site 0's proxy after the round, "
    "if each keeps half and sends half.",
    "masked": "One message alone is uniformly random. Others see the sum and nothing else.",
    "round": "Only step 3 sends anything. A step that is not on the ledger is refused.",
}


def text(x: float, y: float, words: str, size: int = 14, **look: str) -> str:
    """A line of text, centred at x unless ``anchor`` says otherwise."""
    fill, anchor, weight = (
        look.get("fill", INK),
        look.get("anchor", "middle"),
        look.get("weight", "400"),
    )
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{words}</text>'
    )


def box(x: float, y: float, wide: float, high: float, fill: str = "#ffffff", **look: str) -> str:
    """A rectangle with round corners."""
    edge, dash = look.get("edge", GREY), look.get("dash", "")
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="8" fill="{fill}" '
        f'stroke="{edge}" stroke-width="1.5"{dashed}/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str = INK, wide: float = 2) -> str:
    """A line with a head."""
    angle = math.atan2(y2 - y1, x2 - x1)
    size = 5 + 2 * wide
    corners = [(x2, y2)] + [
        (x2 - size * math.cos(angle + turn), y2 - size * math.sin(angle + turn))
        for turn in (0.42, -0.42)
    ]
    head = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    ex, ey = x2 - size * 0.8 * math.cos(angle), y2 - size * 0.8 * math.sin(angle)
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{ex:.1f}" y2="{ey:.1f}" stroke="{colour}" '
        f'stroke-width="{wide:g}"/><polygon points="{head}" fill="{colour}"/>'
    )


def write(name: str, wide: int, high: int, title: str, parts: list[str]) -> None:
    """Writes one picture with its title and ground."""
    body = "\n".join(parts)
    FIGURES.joinpath(f"{name}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'height="{high}" role="img" aria-label="{title}" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">\n'
        f"<title>{title}</title>\n"
        f'<rect width="{wide}" height="{high}" rx="12" fill="#ffffff"/>\n{body}\n</svg>\n',
        encoding="utf-8",
    )


def hospital(x: float, name: str) -> list[str]:
    """An institution with its records, its private model and its proxy."""
    return [
        box(x, 50, 300, 230, PALE),
        text(x + 150, 38, name, 15, weight="600"),
        box(x + 20, 75, 120, 60),
        text(x + 80, 101, "records"),
        text(x + 80, 120, "stay", 12, fill=GREY),
        box(x + 20, 195, 120, 65, edge=GREEN),
        text(x + 80, 220, "private model"),
        text(x + 80, 239, "any kind, stays", 12, fill=GREY),
        box(x + 170, 120, 115, 80, "#eaf4fb", edge=BLUE),
        text(x + 227, 152, "proxy", weight="600", fill=BLUE),
        text(x + 227, 172, "small, trained", 12, fill=GREY),
        text(x + 227, 187, "with DP", 12, fill=GREY),
        arrow(x + 80, 135, x + 80, 193, GREY),
        arrow(x + 140, 108, x + 169, 132, GREY),
        arrow(x + 169, 190, x + 141, 215, BLUE),
    ]


def idea() -> None:
    """Two institutions and what passes between them."""
    write(
        "idea",
        760,
        330,
        "Two hospitals. In each, records train a private model and a small proxy. Only the proxies "
        "travel, and each private model learns from the proxies that arrive.",
        [
            *hospital(20, "Hospital A"),
            *hospital(440, "Hospital B"),
            arrow(305, 145, 608, 145, BLUE, 3),
            arrow(608, 177, 305, 177, BLUE, 3),
            text(380, 130, "proxies", 12, fill=BLUE),
            text(380, 205, "no server", 12, fill=BLUE),
            text(380, 308, CAPTIONS["idea"], 13, fill=GREY),
        ],
    )


def leaves() -> None:
    """Two columns and one arrow: what stays and what leaves."""
    stays = [
        "records, labels, test data",
        "private model and its optimizer",
        "losses, scores, class counts",
        "ledger, keys, settings",
    ]
    leave = [
        "proxy: clipped, noised, every round",
        "its PushSum weight",
        "round, member names, time",
        "release, manifest version",
    ]
    parts = [
        box(20, 50, 320, 210, PALE),
        text(180, 38, "stays at the site", 15, weight="600"),
        box(430, 50, 320, 210, "#eaf4fb", edge=BLUE),
        text(590, 38, "leaves, to the members alone", 15, weight="600", fill=BLUE),
        arrow(342, 155, 428, 155, BLUE, 4),
        text(385, 137, "signed,", 12, fill=BLUE),
        text(385, 182, "TLS 1.3", 12, fill=BLUE),
    ]
    for at, line in enumerate(stays):
        parts.append(text(40, 95 + 44 * at, line, anchor="start"))
    for at, line in enumerate(leave):
        parts.append(text(450, 95 + 44 * at, line, anchor="start"))
    parts.append(text(385, 290, CAPTIONS["leaves"], 13, fill=GREY))
    write(
        "leaves",
        770,
        310,
        "What stays at a site: records, private model, scores, ledger and keys. What leaves: the "
        "proxy, which was clipped and noised, its weight, and the header of its message.",
        parts,
    )


def gossip() -> None:
    """The exponential graph of eight sites over three rounds."""
    parts = []
    for round, hop in enumerate((1, 2, 4)):
        cx, cy, radius = 130 + 250 * round, 155, 88
        parts.append(text(cx, 32, f"round {round + 1}: {hop} ahead", 15, weight="600"))
        places = [
            (cx + radius * math.sin(math.tau * k / 8), cy - radius * math.cos(math.tau * k / 8))
            for k in range(8)
        ]
        for k, (x, y) in enumerate(places):
            to = places[(k + hop) % 8]
            far = math.dist((x, y), to)
            bend = 0 if hop < 4 else 7
            nx, ny = (to[1] - y) / far * bend, -(to[0] - x) / far * bend
            a, b = 17 / far, 1 - 19 / far
            colour = BLUE if k == 0 else "#b6bdc8"
            parts.append(
                arrow(
                    x + (to[0] - x) * a + nx,
                    y + (to[1] - y) * a + ny,
                    x + (to[0] - x) * b + nx,
                    y + (to[1] - y) * b + ny,
                    colour,
                    2 if k == 0 else 1.2,
                )
            )
        heard = {(j) % 8 for j in range(2 ** (round + 1))}
        for k, (x, y) in enumerate(places):
            fill = BLUE if k in heard else "#ffffff"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="15" fill="{fill}" stroke="{INK}"/>')
            parts.append(text(x, y + 5, str(k), 13, fill="#ffffff" if k in heard else INK))
    parts.append(text(380, 285, CAPTIONS["gossip"], 13, fill=GREY))
    write(
        "gossip",
        760,
        305,
        "Eight sites in a ring over three rounds. In round 1 each sends to the next, in round 2 to "
        "the one two ahead, in round 3 four ahead. After three rounds all eight have a part of "
        "site 0's proxy.",
        parts,
    )


def masked() -> None:
    """A masked sum of three sites: masks cancel, noise adds up."""
    parts = []
    rows = [
        ("A", "+ mask AB + mask AC"),
        ("B", "- mask AB + mask BC"),
        ("C", "- mask AC - mask BC"),
    ]
    for at, (site, masks) in enumerate(rows):
        y = 45 + 70 * at
        parts += [
            box(20, y, 400, 50, PALE),
            text(40, y + 31, f"site {site}:", 14, anchor="start", weight="600"),
            text(110, y + 31, f"clipped sum + noise {masks}", 13, anchor="start"),
            arrow(422, y + 25, 488, 140, BLUE, 2),
        ]
    parts += [
        box(490, 95, 260, 90, "#eaf4fb", edge=BLUE),
        text(620, 128, "sum of all three", 15, weight="600", fill=BLUE),
        text(620, 150, "masks cancel, the shares of", 13),
        text(620, 167, "noise add up to what is charged", 13),
        text(380, 280, CAPTIONS["masked"], 13, fill=GREY),
    ]
    write(
        "masked",
        770,
        300,
        "Three sites each send a clipped sum with a share of the noise and pairwise masks. In the "
        "sum the masks cancel, and the shares of noise add up to the noise that is charged.",
        parts,
    )


def round_() -> None:
    """One round at a site, step by step."""
    steps = [
        ("charge", "the ledger, before", "anything is drawn"),
        ("train", "the proxy with DP-SGD,", "the private model without"),
        ("send", "shares of the proxy along", "this round's graph"),
        ("receive", "and check what peers", "send; add it up"),
        ("learn", "the private model learns", "from the received proxy"),
    ]
    parts = []
    for at, (title, first, second) in enumerate(steps):
        x, leaves = 12 + 196 * at, title == "send"
        parts += [
            box(x, 40, 172, 100, "#eaf4fb" if leaves else PALE, edge=BLUE if leaves else GREY),
            text(x + 86, 70, f"{at + 1}. {title}", 15, weight="600"),
            text(x + 86, 97, first, 12),
            text(x + 86, 115, second, 12),
        ]
        if at:
            parts.append(arrow(x - 24, 90, x - 2, 90, GREY))
    parts.append(text(490, 180, CAPTIONS["round"], 13, fill=GREY))
    write(
        "round",
        980,
        200,
        "A round at a site: charge the ledger, train proxy and private model, send shares of the "
        "proxy, receive and add up, let the private model learn from the received proxy.",
        parts,
    )


def logo() -> None:
    """Two rings and a small disc between them."""
    FIGURES.joinpath("logo.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 48 48" role="img" '
        'aria-label="ProxyFL"><title>ProxyFL</title>'
        '<circle cx="13" cy="24" r="10" fill="none" stroke="#56b4e9" stroke-width="4"/>'
        '<circle cx="35" cy="24" r="10" fill="none" stroke="#56b4e9" stroke-width="4"/>'
        '<circle cx="24" cy="24" r="5" fill="#e69f00"/></svg>\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    for draw in (idea, leaves, gossip, masked, round_, logo):
        draw()
