"""Plan how to spread the training of a large model over many GPUs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshplan.app.api import compare, estimate, explain, plan
    from meshplan.errors import UserError

__version__ = "0.1.0"
__all__ = ["UserError", "__version__", "compare", "estimate", "explain", "plan"]


def __dir__() -> list[str]:
    """Names for completion, which :func:`__getattr__` imports."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: the command line starts faster so."""
    if name == "UserError":
        from meshplan.errors import UserError

        return UserError
    if name in __all__:
        from meshplan.app import api

        return getattr(api, name)
    raise AttributeError(name)
