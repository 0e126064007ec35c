"""Let frameworks import and ask about GPUs on a machine that has none.

``triton`` is imported by kernels that are never launched here; an empty stand-in satisfies the
imports. ``torch.cuda`` answers as one H100 would where a validator asks for the compute capability.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
import typing
from typing import Any

__all__ = ["install", "stand_in_for_parts"]


class _Nothing:
    """Stands for any object of a module that is not there: called, indexed, decorated with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bare_decorator = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if bare_decorator else _Nothing()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()

    def __getitem__(self, item: Any) -> Any:
        return _Nothing()

    def __or__(self, other: Any) -> Any:
        return object

    __ror__ = __or__

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)


class _Module(types.ModuleType):
    __path__ = ()
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper():  # used as a class: in isinstance() and as a base
            made = type(name, (), {"__init__": lambda self, *a, **k: None})
            setattr(self, name, made)
            return made
        return _Nothing()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == part or name.startswith(f"{part}.") for part in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Properties:
    major, minor, name, total_memory = 9, 0, "NVIDIA H100 80GB HBM3", 80 * 2**30
    multi_processor_count = 132


def stand_in_for_parts(*names: str) -> None:
    """Stand in for modules of an installed package, and for all below them.

    Args:
        *names: full names of the modules.
    """
    sys.meta_path.insert(0, _Finder(names))


def install(*names: str) -> None:
    """Put the stand-ins in place; call it before importing a framework.

    Args:
        *names: further top-level modules to stand in for, besides ``triton``.
    """
    import torch
    import torch._dynamo
    import torch._functorch.aot_autograd
    import torch._higher_order_ops.triton_kernel_wrap
    import torch.utils._triton as sniffing
    import torch.utils.flop_counter
    import typing_extensions

    # torch must go on believing that there is no triton
    sniffing.has_triton_package = lambda: False
    sniffing.has_triton = lambda *args: False
    sys.meta_path.append(_Finder(("triton", *names)))
    if not hasattr(typing, "override"):  # Python 3.11
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
    torch.cuda.get_device_properties = lambda *a, **k: _Properties
