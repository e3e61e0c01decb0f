#!/bin/bash
# Exim in the foreground; its log goes to standard error.
set -euo pipefail
install -d -m 0777 /run/lab
install -d -o record -g record /var/lib/record
install -d -o Debian-exim -g Debian-exim -m 0750 /var/spool/exim4
install -d -o Debian-exim -g Debian-exim /var/log/exim4
install -D -m 0644 /lab/exim.conf /etc/exim4/exim4.conf
exec exim4 -bdf -q5s -oX 25
