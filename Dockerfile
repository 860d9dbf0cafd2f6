# Images from one file: `controller` (no torch), `engine` (the torch engine and the traffic generator), `vllm` (vLLM's own image with the plug-in).
# Everything of ours lives in /venv, so that the final stages copy one folder and carry no build tools.
ARG PYTHON_IMAGE=python:3.11-slim
ARG VLLM_IMAGE=vllm/vllm-openai:v0.32.0

FROM ${PYTHON_IMAGE} AS base
LABEL org.opencontainers.image.title="Adaptive K" \
      org.opencontainers.image.description="Online tuning of speculative decoding: learns the best draft and K per prompt domain and load." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
RUN useradd --uid 10001 --create-home akc && mkdir /models /tokens && chown akc /models /tokens
ENV PYTHONDONTWRITEBYTECODE=1

FROM base AS build
WORKDIR /src
RUN python -m venv /venv
COPY requirements/build.txt requirements/
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt

FROM build AS build-controller
COPY requirements/controller.txt requirements/
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r requirements/controller.txt
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY controller controller
COPY simulations simulations
# Tests of libraries and Plotly's Python classes (the dashboard needs its JavaScript alone) are a third of it.
RUN /venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /venv/bin/pip uninstall --yes --quiet setuptools wheel pip \
 && find /venv -type d -name tests -prune -exec rm -rf {} + \
 && rm -rf /venv/lib/python*/site-packages/plotly/graph_objs /venv/lib/python*/site-packages/plotly/labextension

FROM build AS build-engine
# A CPU build of torch suffices; pass --build-arg TORCH_PIP_ARGS="..." where the index would give you another one.
ARG TORCH_PIP_ARGS=""
RUN /venv/bin/pip install --no-cache-dir ${TORCH_PIP_ARGS} torch==2.13.0
COPY requirements/engine.txt requirements/
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r requirements/engine.txt
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY controller controller
COPY simulations simulations
# pip stays: the model comes out of a package of the index.
RUN /venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM base AS controller
COPY --from=build-controller /venv /venv
USER akc
WORKDIR /home/akc
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=5s --start-period=20s CMD ["/venv/bin/python", "-m", "controller.cli.probe", "http://127.0.0.1:8080/healthz"]
ENTRYPOINT ["/venv/bin/akc"]
CMD ["controller", "--host", "0.0.0.0"]

FROM base AS engine
COPY --from=build-engine /venv /venv
USER akc
WORKDIR /home/akc
EXPOSE 8000
HEALTHCHECK --interval=5s --timeout=5s --start-period=300s CMD ["/venv/bin/python", "-m", "controller.cli.probe", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["/venv/bin/akc"]
CMD ["engine", "--host", "0.0.0.0"]

# The plug-in needs msgspec, which vLLM has, and redis.
FROM ${VLLM_IMAGE} AS vllm
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY controller controller
COPY simulations simulations
RUN pip install --no-cache-dir "redis==8.1.0" "setuptools>=77" && pip install --no-cache-dir --no-deps --no-build-isolation .
WORKDIR /
