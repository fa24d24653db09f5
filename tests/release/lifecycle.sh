# lifecycle.sh VERSION: install, run, upgrade, remove and purge /tmp/before.deb and /tmp/new.deb in a clean Debian.
# Each step is a line `== TITLE` with its output; the first command that fails ends the script.
set -eu
version=$1
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
step() { echo "== $1"; }
files() { find / -xdev -not -path '/proc/*' -not -path '/tmp/*' -not -path '/var/cache/*' -not -path '/var/log/*.log' |
    grep -v -e '^/var/lib/dpkg' -e '^/var/lib/apt' -e '^/var/log/apt' -e '^/etc/\(passwd\|group\|shadow\|gshadow\|sub.id\)-\?$' |
    sort; }
install() { apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }

files >/tmp/files.before
step "the version before is installed"
install /tmp/before.deb

step "commands answer"
agent --version
agent check -c /etc/flafka/agent.conf
/usr/lib/flafka/flume/bin/flume-ng version | grep -q "$(agent --version | sed 's/.* //')"
for file in man/man1/agent-start.1.gz bash-completion/completions/agent zsh/vendor-completions/_agent \
    fish/vendor_completions.d/agent.fish flafka/editors/flafka.tmLanguage.json doc/flafka/copyright; do
    test -s /usr/share/$file
done

step "files belong to the user flafka, and secrets are hidden"
test "$(stat -c '%U:%G %a' /var/lib/flafka /var/log/flafka | sort -u)" = "flafka:flafka 750"
test "$(stat -c '%U:%G %a' /etc/flafka/agent.conf)" = "root:flafka 640"

step "runs as flafka, from syslog to a file, and ends with code 0 at SIGTERM"
run_agent() {
    setpriv --reuid=flafka --regid=flafka --init-groups \
        env HOME=/var/lib/flafka XDG_STATE_HOME=/var/lib agent start -c /etc/flafka/agent.conf >/tmp/agent.log 2>&1 &
    pid=$!
    /usr/lib/flafka/bin/python3 - "$1" <<'PYTHON' || { cat /tmp/agent.log; exit 1; }
import pathlib, socket, sys, time, urllib.request

line, deadline = sys.argv[1], time.monotonic() + 120
while True:
    try:
        with socket.create_connection(("127.0.0.1", 5140)) as connection:
            connection.sendall(f"<13>1 2026-01-01T00:00:00Z host app - - - {line}\n".encode())
        break
    except ConnectionRefusedError:
        assert time.monotonic() < deadline, "no source listens"
        time.sleep(0.2)
while not any(line in file.read_text() for file in pathlib.Path("/var/log/flafka").iterdir()):
    assert time.monotonic() < deadline, "the line was not delivered"
    time.sleep(0.2)
metrics = urllib.request.urlopen("http://127.0.0.1:14141/metrics/prometheus").read()
assert b"flafka_" in metrics
PYTHON
    kill -TERM $pid
    wait $pid
}
run_agent "from the version before"

step "is upgraded, with the edited configuration kept"
echo "# edited" >>/etc/flafka/agent.conf
install -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold /tmp/new.deb
test "$(agent --version)" = "agent, version $version"
test "$(tail -n 1 /etc/flafka/agent.conf)" = "# edited"
test -f /etc/flafka/agent.conf.dpkg-dist
test "$(stat -c '%U:%G %a' /etc/flafka/agent.conf)" = "root:flafka 640"

step "runs again on the state of the version before"
run_agent "from the new version"

step "is removed, with configuration and state kept"
apt-get remove -y -qq flafka >/dev/null
test ! -e /usr/bin/agent
test ! -e /usr/lib/flafka
test -f /etc/flafka/agent.conf
test -d /var/lib/flafka/disk

step "is purged, and leaves nothing but the user"
dpkg --purge flafka >/dev/null
files >/tmp/files.after
diff /tmp/files.before /tmp/files.after
getent passwd flafka
