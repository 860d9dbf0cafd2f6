# Two images from one file: `controller` (no torch) and `engine` (the torch engine and the traffic generator).
# Everything lives in /venv, so that the final stages copy one folder and carry no build tools.
FROM python:3.11-slim AS base
RUN useradd --uid 10001 --create-home akc && mkdir /models /tokens && chown akc /models /tokens

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
RUN /venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

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
RUN /venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM base AS controller
COPY --from=build-controller /venv /venv
USER akc
WORKDIR /home/akc
EXPOSE 8080
ENTRYPOINT ["/venv/bin/akc"]
CMD ["controller", "--host", "0.0.0.0"]

FROM base AS engine
COPY --from=build-engine /venv /venv
USER akc
WORKDIR /home/akc
EXPOSE 8000
ENTRYPOINT ["/venv/bin/akc"]
CMD ["engine", "--host", "0.0.0.0"]
