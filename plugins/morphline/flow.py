"""Commands that control the flow, and commands that only log or report."""

from __future__ import annotations

import logging
import random

from flafka.plugins.morphline.arguments import Arguments
from flafka.plugins.morphline.compiler import Builder, Compiler, Process, command
from flafka.plugins.morphline.expressions import Expression
from flafka.plugins.morphline.record import MorphlineRecord, MorphlineRuntimeError, to_java_list

_LEVELS = {
    "logTrace": 5, "logDebug": logging.DEBUG, "logInfo": logging.INFO, "logWarn": logging.WARNING,
    "logError": logging.ERROR,
}  # fmt: skip


def _succeed(record: MorphlineRecord) -> bool:
    return True


@command("pipe")
def pipe(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `pipe`, which runs commands in sequence, and then all later ones. A morphline is itself a pipe.

    Raises ValueError if `importCommands` has none of Kite's packages.
    """
    arguments.text("id")
    imports = arguments.text_list("importCommands", ["org.**"])
    if not any(
        package.startswith(("org.kitesdk.", "com.cloudera.")) or package in ("org.**", "com.**")
        for package in imports
    ):
        raise ValueError('imports none of Kite\'s commands: add "org.kitesdk.**" to importCommands')
    return compiler.compile_chain(arguments.object_list("commands"), child)


@command("if")
def if_then_else(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `if`, which runs `then` if all `conditions` succeed, or else `else`.

    Both continue with the commands after `if`. Changes that conditions make to the record stay.
    """
    conditions = arguments.object_list("conditions")
    if not conditions:
        raise ValueError("needs conditions")
    condition = compiler.compile_chain(conditions, _succeed)
    then = compiler.compile_chain(arguments.object_list("then"), child)
    otherwise = compiler.compile_chain(arguments.object_list("else"), child)
    return lambda record: then(record) if condition(record) else otherwise(record)


@command("not")
def negation(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `not`, which continues if its command fails, and fails if its command succeeds."""
    arguments.flat_values()
    inner = compiler.compile_command(arguments.values, _succeed)
    return lambda record: not inner(record) and child(record)


@command("tryRules")
def try_rules(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `tryRules`, which runs rules, each with all later commands, until one succeeds.

    If none does, the command raises MorphlineRuntimeError, or fails without `throwExceptionIfAllRulesFailed`. With
    `catchExceptions`, an error of a rule is a failure of it.
    """
    throws = arguments.boolean("throwExceptionIfAllRulesFailed", True)
    catches = arguments.boolean("catchExceptions", False)
    copies = arguments.boolean("copyRecords", True)
    rules = []
    for definition in arguments.object_list("rules"):
        rule = Arguments(definition)
        if commands := rule.object_list("commands"):
            rules.append(compiler.compile_chain(commands, child))

    def process(record: MorphlineRecord) -> bool:
        for rule in rules:
            try:
                if rule(record.copy() if copies else record):
                    return True
            except MorphlineRuntimeError:
                if not catches:
                    raise
        if throws:
            raise MorphlineRuntimeError("no rule of tryRules succeeds")
        return False

    return process


@command("dropRecord")
def drop_record(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `dropRecord`, which drops the record and succeeds: no later command runs."""
    arguments.flat_values()
    return _succeed


@command("head")
def head(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `head`, which passes the first `limit` records since the start, and drops all later ones; -1 is no limit.

    Dropped records succeed.
    """
    limit = arguments.integer("limit", -1)
    if limit < -1:
        raise ValueError("limit must be at least -1")
    remaining = limit

    def process(record: MorphlineRecord) -> bool:
        nonlocal remaining
        if remaining == 0:
            return True
        remaining -= remaining > 0
        return child(record)

    return process


@command("sample")
def sample(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `sample`, which passes each record with a probability, and drops the others successfully."""
    probability = arguments.number("probability", 1.0)
    if probability < 0:
        raise ValueError("probability must not be negative")
    generator = random.Random(arguments.integer("seed", 0) if "seed" in arguments.values else None)
    return lambda record: generator.random() > probability or child(record)


def _log(level: int) -> Builder:
    def build(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
        """Build a command that logs `format`, with the values of the next of `args` for each `{}`."""
        parts = arguments.text("format").split("{}")
        expressions = [Expression(argument) for argument in arguments.text_list("args", [])]

        def process(record: MorphlineRecord) -> bool:
            if compiler.log.isEnabledFor(level):
                values = [to_java_list(expression.values(record)) for expression in expressions]
                values += ["{}"] * (len(parts) - 1 - len(values))
                line = parts[0] + "".join(value + part for value, part in zip(values, parts[1:], strict=False))
                compiler.log.log(level, "%s", line)
            return child(record)

        return process

    return build


for _name, _level in _LEVELS.items():
    command(_name)(_log(_level))


@command("startReportingMetricsToCSV", "startReportingMetricsToJMX", "startReportingMetricsToSLF4J")
def report_metrics(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build a command without effect, which passes on each record: the agent has its own metrics."""
    arguments.flat_values()
    return child
