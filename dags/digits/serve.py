"""The service, in Ray Serve: one replica that answers ``POST {"pixels": [64 numbers]}``."""

from __future__ import annotations

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse


@serve.deployment(
    ray_actor_options={"num_cpus": 1, "resources": {"TPU": 4}},
    graceful_shutdown_timeout_s=10,
)
class Digits:
    """Holds the model on one TPU host, compiled for one row."""

    def __init__(self, model: str) -> None:
        import jax
        import numpy as np

        from airflow_raytpu.runtime import checkpoints
        from digits.infer import predict

        weights = checkpoints.load(model)
        self._predict = jax.jit(lambda pixels: predict(weights, {"pixels": pixels}))
        self._predict(np.zeros((1, 64), np.float32))  # compiles before the first request

    async def __call__(self, request: Request) -> JSONResponse:
        import numpy as np

        try:
            pixels = np.asarray((await request.json())["pixels"], np.float32).reshape(1, 64)
        except (KeyError, TypeError, ValueError):
            return JSONResponse({"error": 'send {"pixels": [64 numbers from 0 to 1]}'}, status_code=400)
        answer = self._predict(pixels)
        return JSONResponse({"digit": int(answer["digit"][0]), "confidence": float(answer["confidence"][0])})


def build(model: str) -> serve.Application:
    """The application that serves the checkpoint *model*."""
    return Digits.bind(model)
