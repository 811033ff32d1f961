"""Rewards of an attempt into the store, of this attempt alone."""

from __future__ import annotations

from collections.abc import Sequence

from agent_lightning.errors import Conflict
from agent_lightning.records import Reward
from agent_lightning.server.bodies import RewardBody
from agent_lightning.server.state import ServerState
from agent_lightning.store.store import Access


async def keep_rewards(state: ServerState, access: Access, given: Sequence[RewardBody]) -> list[Reward]:
    """As they are stored. Raises Conflict for an id that a reward of another attempt has, and ServerBusy."""
    with state.gates.messages.passing():
        stored = [await state.store.add_reward(body.reward(access)) for body in given]
    for reward in stored:
        if reward.attempt_id != access.attempt_id:
            raise Conflict(f"a reward of another attempt has the id {reward.id!r}: give each reward an id of its own")
    return stored
