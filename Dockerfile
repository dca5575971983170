# The activator's image: the wheel, its hot modules compiled, is built in the first stage; the second has no compiler, no
# pip, nothing of the sources, and no root.
#   docker build -t activator .
#   docker run -p 8012:8012 -v ./activator.yaml:/etc/activator/activator.yaml activator
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY pyproject.toml setup.py LICENSE requirements-dev.txt ./
COPY lb lb
COPY activator activator
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
# The versions that the tests ran with.
RUN python -m venv /opt/activator
RUN /opt/activator/bin/python -m pip install --no-cache-dir --constraint requirements-dev.txt /wheels/*.whl
RUN /opt/activator/bin/activator version | grep -F "(compiled)"
RUN /opt/activator/bin/python -m pip uninstall -qy pip setuptools

FROM python:${PYTHON_VERSION}-slim-bookworm
COPY --from=build /opt/activator /opt/activator
# pip has written the bytecode already, and the root filesystem may be read-only.
ENV PATH=/opt/activator/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /etc/activator
USER 65532:65532
EXPOSE 8012
ENTRYPOINT ["activator"]
CMD ["run"]
