# The broker in a container: docker build -t penstock .    What to do with it: docs/guides/installing.md
FROM python:3.11-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# The environment has no pip of its own; PYTHON of the next stage is the same.
RUN python -m venv --without-pip /opt/penstock \
    && pip --python /opt/penstock/bin/python install --no-cache-dir --constraint constraints.txt \
        ".[server,oauth2,otel,tls]"

FROM python:3.11-slim-bookworm
RUN groupadd --gid 10001 penstock \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/penstock \
        --shell /usr/sbin/nologin penstock \
    && install --directory --mode 0700 --owner 10001 --group 10001 /var/lib/penstock
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PENSTOCK_HOST=0.0.0.0 \
    PENSTOCK_DATA=/var/lib/penstock
# Nothing else is written to: the root may be read-only.
VOLUME /var/lib/penstock
WORKDIR /var/lib/penstock
USER 10001:10001
EXPOSE 5672 15672
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=5m \
    CMD ["penstock", "health_check", "running"]
ENTRYPOINT ["penstock"]
CMD ["serve"]
