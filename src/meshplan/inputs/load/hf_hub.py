"""Fetch a configuration from the Hugging Face hub, where the extra is installed."""

from __future__ import annotations

import importlib
from pathlib import Path

from meshplan.errors import UserError

__all__ = ["fetch_config"]


def fetch_config(hub_id: str) -> Path:
    """Fetch ``config.json`` of a hub repository, or find it in the local cache.

    Nothing but that one file is asked for.

    Args:
        hub_id: ``owner/name``.

    Returns:
        The path of the file in the cache of ``huggingface_hub``.

    Raises:
        UserError: without the extra, offline, without access, or when there is no such file;
            each says how to go on.
    """
    try:
        hub = importlib.import_module("huggingface_hub")
        errors = importlib.import_module("huggingface_hub.errors")
    except ImportError:
        raise UserError.of("model_hub_extra_missing", where="model", value=hub_id) from None
    try:
        return Path(hub.hf_hub_download(hub_id, "config.json"))
    except errors.GatedRepoError:
        code = "model_hub_no_access"
    except errors.RepositoryNotFoundError:
        code = "model_hub_not_found"
    except errors.LocalEntryNotFoundError:
        code = "model_hub_unreachable"
    except errors.EntryNotFoundError:
        code = "model_hub_no_config"
    except (errors.HfHubHTTPError, errors.HFValidationError):
        code = "model_hub_not_found"
    except (OSError, RuntimeError):
        # Connection errors of any transport are OSErrors; a closed client is a RuntimeError.
        code = "model_hub_unreachable"
    raise UserError.of(code, where="model", value=hub_id)
