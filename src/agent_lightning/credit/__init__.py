"""Rewards -> step weights, credit and token advantages. credit.py is read first."""

from agent_lightning.credit.credit import CreditConfig, Credited, CreditReport, assign
from agent_lightning.credit.figures import histogram
from agent_lightning.credit.groups import group_advantages
from agent_lightning.credit.pairs import pairs_of
from agent_lightning.credit.rules import RULES, Rule

__all__ = [
    "RULES",
    "CreditConfig",
    "CreditReport",
    "Credited",
    "Rule",
    "assign",
    "group_advantages",
    "histogram",
    "pairs_of",
]
