#!/bin/bash
# The names of the lab. Every name has one address, on the network that is outside of both sites; peers find each other by
# the addresses in docker-compose.yml (extra_hosts), on the network that they share.
set -euo pipefail
net=${LAB_NET:?}.9
exec dnsmasq --keep-in-foreground --log-facility=- --no-resolv --no-hosts --no-daemon --user=root --cache-size=0 --local-ttl=1 \
  --local=/example/ \
  --host-record="mx1.east.example,$net.11" --host-record="mx2.east.example,$net.12" \
  --host-record="mx1.west.example,$net.21" --host-record="mx2.west.example,$net.22" \
  --host-record="sender.client.example,$net.30" \
  --host-record="postfix.corp.example,$net.41" --host-record="exim.partner.example,$net.42" \
  --mx-host=relay.example,mx1.east.example,10 --mx-host=relay.example,mx2.east.example,10 \
  --mx-host=relay.example,mx1.west.example,10 --mx-host=relay.example,mx2.west.example,10 \
  --mx-host=corp.example,postfix.corp.example,10 --mx-host=client.example,postfix.corp.example,10 \
  --mx-host=partner.example,exim.partner.example,10
