"""What all decorated functions have in common: they run elsewhere, where there is no Airflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_raytpu.model.errors import CodeError
from airflow_raytpu.storage.code import Code, find_code


def own_text(function: Callable[..., Any], decorator: str) -> Code:
    """*function* without its decorators, to be shipped.

    :raises CodeError: it cannot run away from its file, or wants something of Airflow's context.
    """
    wanted = [name for name in inspect.signature(function).parameters if name in KNOWN_CONTEXT_KEYS]
    if wanted:
        raise CodeError(
            f"{function.__name__} takes {', '.join(wanted)} of Airflow's context, and @{decorator} runs it on the "
            "cluster.",
            f'Give the parameter another name and pass it "{{{{ {wanted[0]} }}}}".',
        )
    return find_code(function, f"@{decorator}", decorated=True)
