"""What the running part is called: names that we entered, and what frameworks say of themselves, in order of nesting."""

from __future__ import annotations

from agent_lightning.client import frameworks
from agent_lightning.client.component import Selector
from agent_lightning.client.scope import Scope


def path_here(scope: Scope) -> tuple[str, ...]:
    """Names from the outermost agent to the innermost part that is running now."""
    return _joined(scope, frameworks.current_component())


def in_agent(scope: Scope, selector: Selector, name: str | None) -> Scope:
    """`scope` as seen inside an agent that was injected on its own. The outermost choice of components wins."""
    own = selector if scope.selector is None else scope.selector
    label = own.label if own.label is not None else name
    if label is None or label in scope.component:
        return scope.inside(selector=own, component=scope.component, said=scope.said)
    return _entered(scope, own, label)


def in_part(scope: Scope, name: str) -> Scope:
    """`scope` as seen inside a named part."""
    return _entered(scope, scope.selector, name)


def _entered(scope: Scope, selector: Selector | None, name: str) -> Scope:
    said = frameworks.current_component()
    path = _joined(scope, said)
    return scope.inside(selector=selector, component=path if path[-1:] == (name,) else (*path, name), said=said)


def _joined(scope: Scope, said: tuple[str, ...]) -> tuple[str, ...]:
    """What was entered, then what frameworks have begun since."""
    head = scope.component
    if not head and scope.choice.label is not None:
        head = (scope.choice.label,)
    known = scope.said
    inner = () if said == known else said[len(known) :] if said[: len(known)] == known else said
    return (*head, *inner[1:]) if head and inner and head[-1] == inner[0] else (*head, *inner)
