# Images from one file: `controller` (no torch), `engine` (the torch engine and the traffic generator), `vllm` (vLLM's own image with the plug-in).
# Everything of ours lives in /venv, so that the final stages copy one folder and carry no build tools.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
ARG VLLM_IMAGE=vllm/vllm-openai:v0.32.0
ARG VERSION=0.1.0

FROM ${PYTHON_IMAGE} AS base
RUN useradd --uid 10001 --create-home akc && mkdir /models /tokens && chown akc /models /tokens
ENV PYTHONDONTWRITEBYTECODE=1 PATH=/venv/bin:$PATH

FROM base AS build
WORKDIR /src
RUN python -m venv /venv
COPY requirements/build.txt requirements/
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt

FROM build AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY controller controller
COPY simulations simulations
RUN /venv/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist .

FROM build AS build-controller
COPY requirements/controller.txt requirements/
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r requirements/controller.txt
COPY --from=wheel /dist /dist
# Tests of libraries and Plotly's Python classes (the dashboard needs its JavaScript alone) are a third of it.
RUN /venv/bin/pip install --no-cache-dir --no-deps /dist/*.whl \
 && /venv/bin/pip uninstall --yes --quiet setuptools wheel pip \
 && find /venv -type d -name tests -prune -exec rm -rf {} + \
 && (cd /venv/lib/python*/site-packages/plotly && rm -rf graph_objs validators labextension package_data/widgetbundle.js)

FROM build AS build-engine
# The lock first: it holds all that a CPU build of torch depends on, so that pip finds nothing left to choose.
COPY requirements/engine.txt requirements/
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r requirements/engine.txt
# PyTorch's own index adds 2.13.0+cpu, which pip takes for newer than the 2.13.0 with CUDA of the default index; where that
# index cannot be reached pip warns and takes what it has.
ARG TORCH_PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
RUN /venv/bin/pip install --no-cache-dir ${TORCH_PIP_ARGS} torch==2.13.0
COPY --from=wheel /dist /dist
# pip stays: the model comes out of a package of the index. setuptools, which torch names, is for building extensions alone.
RUN /venv/bin/pip install --no-cache-dir --no-deps /dist/*.whl && /venv/bin/pip uninstall --yes --quiet setuptools wheel

FROM base AS controller
COPY --from=build-controller /venv /venv
USER akc
WORKDIR /home/akc
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=5s --start-period=20s CMD ["/venv/bin/python", "-m", "controller.cli.probe", "http://127.0.0.1:8080/healthz"]
ENTRYPOINT ["/venv/bin/akc"]
CMD ["controller", "--host", "0.0.0.0"]
ARG VERSION SOURCE REVISION CREATED
LABEL org.opencontainers.image.title="Adaptive K: controller" \
      org.opencontainers.image.description="Online tuning of speculative decoding: learns the best draft and K per prompt domain and load." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"

FROM base AS engine
COPY --from=build-engine /venv /venv
USER akc
WORKDIR /home/akc
EXPOSE 8000
HEALTHCHECK --interval=5s --timeout=5s --start-period=300s CMD ["/venv/bin/python", "-m", "controller.cli.probe", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["/venv/bin/akc"]
CMD ["engine", "--host", "0.0.0.0"]
ARG VERSION SOURCE REVISION CREATED
LABEL org.opencontainers.image.title="Adaptive K: torch engine" \
      org.opencontainers.image.description="A small OpenAI-compatible engine whose speculation follows Adaptive K's policy." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"

# The plug-in needs msgspec, which vLLM has, and redis, in the version that the plug-in's tests run with. Nothing is resolved here, so that
# nothing of vLLM's is replaced; the last line fails where its image has no msgspec.
FROM ${VLLM_IMAGE} AS vllm
RUN --mount=type=bind,source=requirements/vllm.txt,target=/run/vllm.txt --mount=type=bind,from=wheel,source=/dist,target=/mnt \
    python3 -m pip install --no-cache-dir --no-deps --require-hashes -r /run/vllm.txt \
 && python3 -m pip install --no-cache-dir --no-deps /mnt/*.whl \
 && python3 -c "import engine.link.messages, engine.vllm.plugin, redis"
ARG VERSION SOURCE REVISION CREATED
LABEL org.opencontainers.image.title="Adaptive K: vLLM with the plug-in" \
      org.opencontainers.image.description="vLLM whose speculation follows Adaptive K's policy." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
