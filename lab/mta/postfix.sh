#!/bin/bash
# Postfix in the foreground with the main.cf named by $1. Debian's chroot is left out: it would need copies of resolv.conf.
set -euo pipefail
cp "/lab/$1" /etc/postfix/main.cf
postconf -F '*/*/chroot = n'
postconf -M 'record/unix=record unix - n n - 4 pipe user=record argv=/lab/record.py ${recipient}'
postconf -M 'deferral/unix=deferral unix - n n - 0 spawn user=record argv=/lab/deferral.py'
install -d -m 0777 /run/lab
install -d -o record -g record /var/lib/record
exec postfix start-fg
