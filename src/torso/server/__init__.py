"""The server's part of a round: server rules and statistics, as pure functions of its state and the uploads."""

from torso.server import attention as attention  # registers its statistics
from torso.server import centre as centre  # registers its statistics
from torso.server import consensus as consensus  # registers its statistics
from torso.server import fedbuff as fedbuff  # registers its rule
from torso.server import federated_features as federated_features  # registers its statistics
from torso.server import fisher as fisher  # registers its statistics
from torso.server import gaussians as gaussians  # registers its statistics
from torso.server import prototypes as prototypes  # registers its statistics
from torso.server import realignment as realignment  # registers its statistics
from torso.server import robust as robust  # registers its rules
from torso.server.rules import Mean, RuleStep, ServerRule, servers
from torso.server.statistics import NoStatistics, Statistic, Statistics, statistics

__all__ = ["Mean", "NoStatistics", "RuleStep", "ServerRule", "Statistic", "Statistics", "servers", "statistics"]
