# Airflow with this provider, for every component: API server, scheduler, DAG processor, triggerer, workers.
#
#   docker build -f docker/airflow.Dockerfile -t REGION-docker.pkg.dev/PROJECT/REPO/airflow-raytpu:TAG .
#
# EXTRA=local adds Ray and JAX for simulated slices on this machine; work on GKE needs neither.
ARG AIRFLOW_IMAGE=apache/airflow:slim-3.3.2-python3.12

FROM python:3.12-slim AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY airflow_raytpu airflow_raytpu
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${AIRFLOW_IMAGE}
ARG EXTRA=""
COPY docker/requirements-airflow.txt docker/constraints-airflow.txt /opt/raytpu/
COPY --from=wheel /wheels /opt/raytpu/wheels
RUN wheel=$(echo /opt/raytpu/wheels/*.whl) \
    && pip install --no-cache-dir --constraint /opt/raytpu/constraints-airflow.txt \
    --requirement /opt/raytpu/requirements-airflow.txt "${wheel}${EXTRA:+[${EXTRA}]}" \
    && pip check
COPY dags /opt/airflow/dags
# As the base image has it, by number. No HEALTHCHECK: each component has a check of its own, see compose.yaml and the chart.
USER 50000:0
