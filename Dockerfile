# HARMONY's workers and demo fleet. Not built in the project's own tests: no container engine there.
# By digest: --build-arg PYTHON_IMAGE=python@sha256:... (docs/operations/compose.md).
ARG PYTHON_IMAGE=python:3.11.11-slim-bookworm
FROM ${PYTHON_IMAGE} AS build
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PROJECT_ENVIRONMENT=/opt/harmony UV_PYTHON_DOWNLOADS=never
WORKDIR /src
RUN pip install --no-cache-dir uv==0.13.9
# The locked environment first: it changes less often than the sources.
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-default-groups --extra keda --no-install-project
COPY streams streams
COPY agents agents
COPY model model
COPY infra infra
RUN uv sync --frozen --no-default-groups --extra keda --no-editable
# Compiled loops, too, or every new container would compile them for most of a minute. They are taken for those of their
# sources by time stamps, of which layers keep whole seconds.
RUN cd "$(/opt/harmony/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    && find harmony -name '*.py' -exec touch --date=2024-01-01T00:00:00Z {} + \
    && /opt/harmony/bin/python -m compileall -q -f harmony \
    && /opt/harmony/bin/python -m harmony.infra.worker.warm_up

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 harmony \
    && useradd --uid 10001 --gid harmony --create-home --shell /usr/sbin/nologin harmony \
    && install --directory --owner harmony --group harmony /var/lib/harmony
COPY --from=build /opt/harmony /opt/harmony
ENV PATH=/opt/harmony/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HARMONY_STATE_DIR=/var/lib/harmony
# Machine code is read only from where it may be written: with a read-only root that is neither beside the sources nor in
# a home, and every start would compile all of it.
ENV NUMBA_CACHE_DIR=/tmp/compiled
WORKDIR /var/lib/harmony
USER 10001:10001
EXPOSE 9464
ENTRYPOINT ["harmony"]
CMD ["worker"]
