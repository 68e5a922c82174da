"""Where clients run. An engine maps a piece of work over clients; it knows nothing of methods or measures."""

from torso.engine.base import SERVER, Desk, Engine, Work, engines
from torso.engine.threads import OneByOne

__all__ = ["SERVER", "Desk", "Engine", "OneByOne", "Work", "engines"]
