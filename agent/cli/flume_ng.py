"""`agent flume-ng`: the command line of Flume's launcher. A link named flume-ng to `agent` runs it too."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from flafka.agent.cli.output import Verbs

FLUME_VERSION = "1.11.0"
"""Version of Flume whose commands, options and configurations are accepted."""
LEVELS = {
    "ALL": "DEBUG",
    "TRACE": "DEBUG",
    "DEBUG": "DEBUG",
    "WARN": "WARNING",
    "ERROR": "WARNING",
    "FATAL": "WARNING",
}
"""Level of `-Dflume.root.logger=LEVEL,APPENDER` → level of `agent start`; INFO for any other."""
READ_BYTES = 64 * 1024


class _LikeFlume(click.Command):
    """Command whose long options may begin with a single hyphen, as for Flume's parser of options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments as click does, with a second hyphen before the name of each long option."""
        options = (option for param in self.get_params(ctx) for option in param.opts)
        short = {option[1:] for option in options if option.startswith("--")}
        return super().parse_args(ctx, ["-" * (arg.partition("=")[0] in short) + arg for arg in args])


class _Launcher(Verbs):
    """Group of Flume's commands, with those that Flume only keeps for old scripts."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name; `node` is an old name of `agent`."""
        return super().get_command(ctx, "agent" if cmd_name == "node" else cmd_name)


@click.group(cls=_Launcher, name="flume-ng", context_settings={"help_option_names": ["-h", "--help"]})
def flume_ng() -> None:
    """Accept the command line of Flume's launcher, for scripts and units that call flume-ng.

    \b
    agent flume-ng agent -n a1 -c conf -f flume.conf
    ln -s $(command -v agent) /opt/flume/bin/flume-ng     then the same as flume-ng.

    Options of the JVM are accepted without effect. An option that cannot be honoured ends with one sentence.
    """


_GLOBAL = (
    click.option("-c", "--conf", metavar="DIR", type=click.Path(), help="Directory with Hadoop's configuration."),
    click.option("-C", "--classpath", metavar="CP", help="Without effect: no Java class is loaded."),
    click.option("-d", "--dryrun", is_flag=True, help="Print the command that would be run, and run nothing."),
    click.option("--plugins-path", metavar="DIRS", help="Without effect: plugins are Python packages."),
    click.option("-D", "define", metavar="KEY=VALUE", multiple=True, help="System property, such as sys:KEY."),
    click.option("-X", "java", metavar="VALUE", multiple=True, help="Without effect: there is no JVM."),
)


def _global_options(command: Any) -> Any:
    """Return the function with the options of every command of flume-ng."""
    for decorate in reversed(_GLOBAL):
        command = decorate(command)
    return command


@flume_ng.command("help")
@click.pass_context
def show_help(context: click.Context) -> None:
    """Show the commands."""
    assert context.parent is not None
    click.echo(context.parent.get_help())


@flume_ng.command(cls=_LikeFlume)
@_global_options
@click.option("-n", "--name", metavar="AGENT", required=True, help="Name of the agent.")
@click.option(
    "-f", "--conf-file", metavar="FILE", type=click.Path(), multiple=True, help="Configuration file. May be repeated."
)
@click.option("--no-reload-conf", is_flag=True, help="Do not reload a changed configuration.")
@click.option("-u", "--conf-uri", metavar="URI", multiple=True, help="URI of a configuration: only of a file.")
@click.option("-z", "--zkConnString", "zookeeper", metavar="HOSTS", help="Refused: a configuration is a file.")
@click.option("-p", "--zkBasePath", "zookeeper_path", metavar="PATH", help="Refused, as -z.")
@click.option("-prov", "--conf-provider", "provider", metavar="CLASS", help="Refused, as -z.")
@click.option("-a", "--auth-provider", metavar="CLASS", help="Without effect on files.")
@click.option("-user", "--conf-user", metavar="USER", help="Without effect on files.")
@click.option("-pwd", "--conf-password", metavar="PASSWORD", help="Without effect on files.")
@click.option("-i", "--poll-interval", metavar="SECONDS", help="Without effect: files are polled every 30 s.")
@click.option("-b", "--backup-directory", metavar="DIR", help="Without effect on files.")
def agent(
    name: str,
    conf: str | None,
    conf_file: tuple[str, ...],
    conf_uri: tuple[str, ...],
    define: tuple[str, ...],
    no_reload_conf: bool,
    dryrun: bool,
    zookeeper: str | None,
    zookeeper_path: str | None,
    provider: str | None,
    **unused: Any,
) -> None:
    """Run the agent of this name until SIGTERM or Ctrl-C, as `agent start -n AGENT -f FILE`."""
    from flafka.agent.cli.start import start

    if zookeeper is not None or zookeeper_path is not None:
        raise click.UsageError(
            "configurations in ZooKeeper are not read: save the node as a file, and name it with -f"
        )
    if provider is not None:
        raise click.UsageError("classes that provide configurations are not loaded: name a file with -f")
    files = [*conf_file, *map(_file_of_uri, conf_uri)]
    if not files:
        raise click.UsageError("which configuration? Name it with -f FILE")
    arguments = ["-n", name, *(word for file in files for word in ("-f", file))]
    if conf is not None:
        arguments += ["-c", conf]
    arguments += [f"-D{pair}" for pair in define]
    level = next((pair.partition("=")[2] for pair in define if pair.startswith("flume.root.logger=")), None)
    if level is not None:
        arguments += ["--log-level", LEVELS.get(level.partition(",")[0].strip().upper(), "INFO")]
    if no_reload_conf:
        arguments.append("--no-reload-conf")
    if dryrun:
        click.echo(shlex.join(["agent", "start", *arguments]))
        return
    for warning in _warnings(conf, unused):
        click.echo(f"flume-ng: {warning}", err=True)
    start.main(arguments, prog_name="agent start", standalone_mode=False)


def _file_of_uri(uri: str) -> str:
    """Return the path of a `file:` URI or of a plain path. Raises UsageError for any other URI."""
    path = re.sub(r"^file:(//(localhost)?(?=/))?", "", uri)
    if re.match(r"[a-z][a-z0-9+.-]*:", path, re.IGNORECASE):
        raise click.UsageError(f"--conf-uri {uri}: only files are read; fetch it, and name the file with -f")
    return path


def _warnings(conf: str | None, unused: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each thing that Flume's launcher would use."""
    reasons = {
        "classpath": "no Java class is loaded; `agent template` prints a Python component in its place",
        "plugins_path": "plugins are Python packages; `agent template` prints one to start from",
        "java": "there is no JVM",
        "poll_interval": "files are polled every 30 s",
    }
    for option, reason in reasons.items():
        if unused.get(option):
            name = "-X" if option == "java" else f"--{option.replace('_', '-')}"
            yield f"{name} has no effect: {reason}"
    if conf is not None and (Path(conf) / "flume-env.sh").exists():
        yield f"{conf}/flume-env.sh is not read: put its -D properties on the command line, and export its variables"


@flume_ng.command("avro-client", cls=_LikeFlume)
@_global_options
@click.option("-H", "--host", metavar="HOST", help="Host of the source.")
@click.option("-p", "--port", type=click.IntRange(1, 65535), help="Port of the source.")
@click.option(
    "-F", "--filename", metavar="FILE", type=click.Path(), help="File of lines, one an event; else standard input."
)
@click.option(
    "-R", "--headerFile", "header_file", metavar="FILE", type=click.Path(), help="Headers: KEY=VALUE lines."
)
@click.option("-P", "--rpcProps", "properties_file", metavar="FILE", type=click.Path(), help="Options of the client.")
@click.option("--dirname", metavar="DIR", help="Refused: use the source spooldir.")
def avro_client(
    host: str | None,
    port: int | None,
    filename: str | None,
    header_file: str | None,
    properties_file: str | None,
    dirname: str | None,
    dryrun: bool,
    **_unused: Any,
) -> None:
    """Send the lines of a file, or of standard input, to an avro source, at least once.

    The exit code is 0 if the source has stored all events.
    """
    if dirname is not None:
        raise click.UsageError("--dirname is not built: follow the directory with a source of type = spooldir")
    properties = {}
    if properties_file is not None:
        properties = _client_properties(_read_properties(properties_file))
    elif host is not None and port is not None:
        properties = {"hostname": host, "port": str(port)}
    else:
        raise click.UsageError("which source? Name it with --host and --port, or with --rpcProps FILE")
    headers = _read_properties(header_file) if header_file is not None else {}
    if dryrun:
        click.echo(f"would send {filename or 'standard input'} to {properties['hostname']}:{properties['port']}")
        return
    count = _send(properties, headers, filename)
    click.echo(f"{count:,} events sent", err=True)


def _read_properties(file: str) -> dict[str, str]:
    """Return the properties of a file. Raises ClickException if it cannot be read."""
    import javaproperties

    try:
        with Path(file).open(encoding="latin-1") as stream:
            return javaproperties.load(stream)
    except (OSError, ValueError) as e:
        raise click.ClickException(f"{file} cannot be read: {getattr(e, 'strerror', None) or e}") from e


def _client_properties(written: Mapping[str, str]) -> dict[str, str]:
    """Translate options of an RPC client into options of the sink avro. Raises ClickException if that fails."""
    if (kind := written.get("client.type", "default")).lower() not in ("default", "avro"):
        raise click.ClickException(f"client.type = {kind} is not built: send to one host with client.type = default")
    hosts = written.get("hosts", "").split()
    if len(hosts) != 1:
        raise click.ClickException("hosts must name one host: several are for the sinks of a sink group")
    host, _, port = written.get(f"hosts.{hosts[0]}", "").rpartition(":")
    rest = {key: value for key, value in written.items() if not key.startswith(("hosts", "client.type"))}
    return {**rest, "hostname": host, "port": port}


def _send(properties: Mapping[str, str], headers: Mapping[str, str], filename: str | None) -> int:
    """Send each line as an event with these headers, and return their number. Raises ClickException after a failure.

    Lines are sent as soon as they are read, so that a pipe that stays open is no reason to wait.
    """
    from flafka.plugins import Batch, Components, Event, Retry, Sink

    cls = Components().get("sink", "avro")
    config, problems = cls.config_class.parse(properties)
    if config is None:
        raise click.ClickException("; ".join(f"{problem.option}: {problem.message}" for problem in problems))
    sink = cls(config, "avro-client")
    assert isinstance(sink, Sink)
    count = 0
    try:
        sink.open()
        for lines in _lines(filename):
            sink.write(Batch.of(Event(line, dict(headers)) for line in lines))
            sink.flush()
            count += len(lines)
    except Retry as e:
        raise click.ClickException(f"{e}; {count:,} events were stored, and perhaps some more") from e
    except OSError as e:
        raise click.ClickException(f"{filename or 'standard input'} cannot be read: {e.strerror}") from e
    finally:
        sink.close()
    return count


def _lines(filename: str | None) -> Iterator[list[bytes]]:
    """Yield the lines of a file, without their ends, as they can be read."""
    descriptor = os.open(filename, os.O_RDONLY) if filename is not None else sys.stdin.fileno()
    try:
        rest = b""
        while data := os.read(descriptor, READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if lines:
                yield [line.removesuffix(b"\r") for line in lines]
        if rest:
            yield [rest]
    finally:
        if filename is not None:
            os.close(descriptor)


@flume_ng.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def password(arguments: tuple[str, ...]) -> None:
    """Refuse to write a file with a password, which Flume would only obscure."""
    raise click.ClickException(
        "obscured passwords are not read: keep the password in a file of mode 0600, and write ${file:/PATH} for it"
    )


@flume_ng.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def tool(arguments: tuple[str, ...]) -> None:
    """Refuse to repair a file channel of Flume's."""
    raise click.ClickException(
        "Flume's file channel is not repaired: `agent migrate --import-channel` takes over the events it has left"
    )


@flume_ng.command()
def version() -> None:
    """Show the version, and the version of Flume whose configurations run."""
    from importlib.metadata import version as installed

    click.echo(f"Flafka {installed('flafka')}, which runs configurations of Apache Flume {FLUME_VERSION}")
