#!/bin/sh
# Argument: `purge` and others of Debian. The user stays, as sinks may have files elsewhere that another user would get.
set -e
case "$1" in
    purge) rm -rf /var/lib/flafka /var/log/flafka /etc/flafka ;;
esac
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
