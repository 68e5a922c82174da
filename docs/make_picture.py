"""Make docs/demo.svg: run the demo in a real terminal (tmux), and draw what is on its screen.

Needs tmux; run from the repository's root: .venv/bin/python docs/make_picture.py
"""

from __future__ import annotations

import io
import subprocess
import time

from rich.console import Console
from rich.text import Text

WIDTH, HEIGHT, NAME = 118, 40, "torso-picture"


def tmux(*arguments: str) -> str:
    return subprocess.run(["tmux", *arguments], capture_output=True, text=True, check=True).stdout


def screen() -> str:
    """What the terminal shows, with colours."""
    return tmux("capture-pane", "-p", "-e", "-t", NAME)


def main() -> None:
    tmux(
        "new-session",
        "-d",
        "-s",
        NAME,
        "-x",
        str(WIDTH),
        "-y",
        str(HEIGHT),
        "env",
        "PS1=$ ",
        "COLORTERM=truecolor",
        "sh",
    )
    try:
        tmux("send-keys", "-t", NAME, "clear; make demo", "Enter")
        while "fedbabu seed 0: runs/" not in screen():
            time.sleep(1)
        time.sleep(1)  # the rest of what it prints
        shown = screen()
    finally:
        tmux("kill-session", "-t", NAME)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(shown.rstrip()), no_wrap=True)
    console.save_svg("docs/demo.svg", title="make demo")


if __name__ == "__main__":
    main()
