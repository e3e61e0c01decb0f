#!/bin/sh
exec /opt/shadowrelay/bin/python3 -m shadowrelay "$@"
