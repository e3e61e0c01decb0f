# Debian's Prometheus for the lab, behind its profile. Not a stage of the other Dockerfile: nobody else should wait for it, nor it for
# Spark.
FROM debian:bookworm-slim AS prometheus
RUN apt-get update \
    && apt-get install -y --no-install-recommends prometheus \
    && apt-get clean && rm -rf /var/lib/apt/lists/* \
    && install -d -o prometheus -g prometheus /var/lib/prometheus
COPY lab/prometheus.yml /etc/prometheus/prometheus.yml
COPY configs/prometheus/alerts.yml /etc/prometheus/shadowrelay.yml
# readable for its user, whatever the umask of the checkout
RUN chmod a+r /etc/prometheus/prometheus.yml /etc/prometheus/shadowrelay.yml
USER prometheus
EXPOSE 9090
ENTRYPOINT ["prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/var/lib/prometheus"]
