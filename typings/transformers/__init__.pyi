"""What the type checker sees of transformers' top level: its real one names every model class and takes half a minute."""

from typing import Any

def __getattr__(name: str) -> Any: ...
