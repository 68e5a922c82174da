"""How does the server move? Pure functions of (state, what the clients sent)."""

from torso.server import fedbuff as fedbuff  # registers its rule
from torso.server import robust as robust  # registers its rules
from torso.server.rules import Mean, Moved, ServerRule, servers

__all__ = ["Mean", "Moved", "ServerRule", "servers"]
