# What Ray's head and workers run: Ray, JAX for TPU, and of this package the runtime. No Airflow.
#
#   docker build -f docker/ray-tpu.Dockerfile --build-arg VARIANT=train -t REGION-docker.pkg.dev/PROJECT/REPO/ray-tpu:TAG .
#
# VARIANT=train   training, batch inference, and applications of plain JAX
# VARIANT=serve   applications of Ray Serve LLM: vLLM for TPU wants another JAX and NumPy than training is tested with
ARG RAY_IMAGE=rayproject/ray:2.60.0-py312-tpu

FROM python:3.12-slim AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY airflow_raytpu airflow_raytpu
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${RAY_IMAGE}
ARG VARIANT=train
# Ray's own set in this image is older (jax 0.5); what is pinned here replaces it.
COPY docker/requirements-${VARIANT}.txt docker/constraints-${VARIANT}.txt docker/verify_ray_image.py /opt/raytpu/
RUN pip install --no-cache-dir --constraint /opt/raytpu/constraints-${VARIANT}.txt \
    --requirement /opt/raytpu/requirements-${VARIANT}.txt
# Without dependencies: they are Airflow's side's, and the runtime imports none of them.
COPY --from=wheel /wheels /opt/raytpu/wheels
RUN pip install --no-cache-dir --no-deps /opt/raytpu/wheels/*.whl && python /opt/raytpu/verify_ray_image.py
# By number, so that runAsNonRoot can be checked. No HEALTHCHECK: KubeRay brings its own probes, and Kubernetes reads none.
USER 1000:100
