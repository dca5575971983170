# The activator's image: the wheel, its hot modules compiled, is built in the first stage; the second has no compiler, no
# pip, nothing of the sources, and no root. Nothing in it names a processor: `docker buildx build --platform
# linux/amd64,linux/arm64` builds for both.
#   docker build -t activator .
#   docker run -p 8012:8012 -v ./activator.yaml:/etc/activator/activator.yaml activator
# A base image that cannot change under the tag, for releases; the digest is that of the list of all platforms, as
# `docker buildx imagetools inspect python:3.11-slim-bookworm` shows it:
#   docker build --build-arg PYTHON_DIGEST=@sha256:… -t activator .
ARG PYTHON_VERSION=3.11
ARG PYTHON_DIGEST=

FROM python:${PYTHON_VERSION}-slim-bookworm${PYTHON_DIGEST} AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE requirements-dev.txt ./
COPY lb lb
COPY activator activator
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
# The versions that the tests ran with, and those of all extras.
RUN python -m venv /opt/activator
RUN for wheel in /wheels/*.whl; do /opt/activator/bin/python -m pip install --no-cache-dir --constraint requirements-dev.txt "${wheel}[all]"; done
RUN /opt/activator/bin/activator version | grep -F "(compiled)"
RUN /opt/activator/bin/python -m pip uninstall -qy pip setuptools

FROM python:${PYTHON_VERSION}-slim-bookworm${PYTHON_DIGEST}
COPY --from=build /opt/activator /opt/activator
# pip has written the bytecode already, and the root filesystem may be read-only. `-p` does not reach 127.0.0.1 within a
# container, so the default of `listen` is all addresses here; the admin port stays within.
ENV PATH=/opt/activator/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 ACTIVATOR_BIND_HOST=0.0.0.0
WORKDIR /etc/activator
USER 65532:65532
EXPOSE 8012
# The admin port answers. Kubernetes does not look at this: the chart has its own probes. With an admin port elsewhere
# than in the default: `docker run --health-cmd "activator status --admin http://127.0.0.1:PORT" …`.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s CMD ["activator", "status"]
ENTRYPOINT ["activator"]
CMD ["run"]
