"""Rewards -> step weights, credit and token advantages. credit.py is read first."""

from agent_lightning.credit.credit import CreditConfig, Credited, CreditReport, assign
from agent_lightning.credit.figures import histogram
from agent_lightning.credit.groups import group_advantages

__all__ = ["CreditConfig", "CreditReport", "Credited", "assign", "group_advantages", "histogram"]
