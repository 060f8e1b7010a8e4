"""Settings are known without the libraries of models."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import isthmus
from isthmus.config import Settings
from isthmus.config.setting_list import settings_in

SOURCE = Path(isthmus.__file__).parent
SETTINGS = [*SOURCE.rglob("settings.py"), *SOURCE.rglob("*_settings.py")]
HEAVY = ("torch", "transformers", "accelerate", "tokenizers")


def test_no_settings_load_the_libraries_of_models() -> None:
    """One process imports them all: a heavy import stays until its end."""
    modules = [
        ".".join(("isthmus", *file.relative_to(SOURCE).with_suffix("").parts))
        for file in SETTINGS
        if "encoders" not in file.parts
    ]
    assert {"isthmus.pretraining.settings", "isthmus.finetuning.settings"} <= set(modules)
    program = (
        "import sys, importlib\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = [library for library in {HEAVY!r} if library in sys.modules]\n"
        "    assert not heavy, (name, heavy)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_every_setting_says_what_it_means() -> None:
    for file in SETTINGS:
        path = ".".join(("isthmus", *file.relative_to(SOURCE).with_suffix("").parts))
        for found in vars(importlib.import_module(path)).values():
            if isinstance(found, type) and issubclass(found, Settings) and found.verb:
                silent = [one.path for one in settings_in(found) if not one.meaning]
                assert not silent, found.__name__
