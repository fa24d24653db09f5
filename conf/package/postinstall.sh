#!/bin/sh
# Arguments: Debian's are `configure` and the version before, if any; those of RPM the number of installed versions.
set -e
if ! getent passwd flafka >/dev/null; then
    useradd --system --user-group --home-dir /var/lib/flafka --no-create-home --shell /usr/sbin/nologin flafka
fi
chown flafka:flafka /var/lib/flafka /var/log/flafka
chgrp flafka /etc/flafka/agent.conf
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # A first installation starts nothing, as the configuration is still the example.
    systemctl try-restart flafka.service || :
fi
