# The images of the lab; `relay` is also one to run a node from. Three of them, built from Debian's packages and the locks in
# requirements/. No BuildKit syntax: Compose v1 builds it too, and then all stages above the one that is wanted: so Prometheus has a
# file of its own. `shadowrelay lab up` builds `relay` and `mta`, `spark` on demand.
#
#   docker build --target relay --tag shadowrelay-relay .

# ---- source: what is ours, where it belongs, readable for every user: COPY keeps the modes of a checkout, and under a umask of 027
# nobody else may read that
FROM debian:bookworm-slim AS source
COPY lab/mta /source/lab
COPY lab/bin /source/opt/bin
COPY shadowrelay /source/opt/lib/python3.11/site-packages/shadowrelay
RUN chmod -R a+rX /source

# ---- mta: everything around the nodes: senders, receivers, DNS, and the tools that cut networks
FROM debian:bookworm-slim AS mta
# Two MTAs exclude each other as packages, and the lab wants both: Exim's program is unpacked beside Postfix.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        postfix libgnutls-dane0 libidn12 libidn2-0 libpcre2-8-0 dnsmasq-base iproute2 iptables procps python3 swaks \
    && cd /tmp \
    && apt-get download exim4-daemon-light \
    && dpkg --extract exim4-daemon-light_*.deb / \
    && rm -f exim4-daemon-light_*.deb \
    && apt-get clean && rm -rf /var/lib/apt/lists/* \
    && useradd --system --user-group --no-create-home --home-dir /var/spool/exim4 --shell /usr/sbin/nologin Debian-exim \
    && useradd --system --user-group --no-create-home --shell /usr/sbin/nologin record
COPY --from=source /source/lab /lab
ENTRYPOINT ["/bin/bash"]

# ---- python: what both Python images stand on, and where the locked dependencies are put into a virtual environment
FROM debian:bookworm-slim AS python
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PATH=/opt/shadowrelay/bin:$PATH
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && apt-get clean && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --user-group --home-dir /var/lib/shadowrelay --shell /usr/sbin/nologin shadowrelay

FROM python AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && apt-get clean && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/shadowrelay
# requirements first: a change of the source does not install them again
COPY requirements/base.txt /tmp/requirements/
RUN pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement /tmp/requirements/base.txt

FROM build AS environment
RUN pip uninstall --quiet --yes setuptools pip

# ---- relay: one node. Nothing in it is writable but its volumes, and it runs with a read-only root file system.
FROM python AS relay
# the public authorities are for where logs may be shipped to; an empty volume takes the owner of the directory that it covers
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && apt-get clean && rm -rf /var/lib/apt/lists/* \
    && install -d -o shadowrelay -g shadowrelay -m 0750 \
        /var/lib/shadowrelay /var/log/shadowrelay /var/log/shadowrelay/tracking /var/log/shadowrelay/shipped
COPY --from=environment /opt/shadowrelay /opt/shadowrelay
WORKDIR /var/lib/shadowrelay
VOLUME ["/var/lib/shadowrelay", "/var/log/shadowrelay/tracking"]
EXPOSE 2525 8025 8026
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["ask", "/health/ready"]
ENTRYPOINT ["shadowrelay"]
CMD ["serve", "--config", "/etc/shadowrelay/node.toml"]
# plain Python: to copy it is to install it, and no build tool is needed that no lock holds. Last, because it changes most.
COPY --from=source /source/opt /opt/shadowrelay
RUN python -m compileall -q /opt/shadowrelay/lib/python3.11/site-packages/shadowrelay
USER shadowrelay

# ---- spark: the service-level report; a JRE and PySpark on top of the same Python and the same source as the nodes
FROM build AS spark
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && apt-get clean && rm -rf /var/lib/apt/lists/* \
    && install -d -o shadowrelay -g shadowrelay /var/lib/shadowrelay /var/lib/shadowrelay/warehouse /var/lib/shadowrelay/report
ENV SPARK_HOME=/opt/shadowrelay/lib/python3.11/site-packages/pyspark PYSPARK_PYTHON=/opt/shadowrelay/bin/python3 MPLCONFIGDIR=/tmp
WORKDIR /var/lib/shadowrelay
ENTRYPOINT ["shadowrelay"]
COPY requirements/spark.txt /tmp/requirements/
RUN pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement /tmp/requirements/spark.txt
# as few steps as possible on top of a layer of this size
USER shadowrelay
COPY --from=source /source/opt /opt/shadowrelay
