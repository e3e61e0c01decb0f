# Grafana for the lab, behind its profile: Debian has none, so this image comes from Docker Hub, where it can be had.
ARG GRAFANA=grafana/grafana:11.6.0
FROM ${GRAFANA}
USER root
COPY lab/grafana/ /etc/grafana/provisioning/
COPY configs/grafana/ /var/lib/grafana/dashboards/
# readable for its user, whatever the umask of the checkout
RUN chmod -R a+rX /etc/grafana/provisioning /var/lib/grafana/dashboards
USER 472
EXPOSE 3000
