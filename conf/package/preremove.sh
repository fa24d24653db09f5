#!/bin/sh
# Argument: `remove` or `upgrade` of Debian, or how many versions RPM leaves.
set -e
case "$1" in
    remove | 0) if [ -d /run/systemd/system ]; then systemctl disable --now flafka.service; fi ;;
esac
