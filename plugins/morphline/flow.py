"""Commands that decide which others run, and those that only look on."""

from __future__ import annotations

import logging
import random

from flafka.plugins.morphline.arguments import Arguments
from flafka.plugins.morphline.compiler import Builder, Compiler, Process, command
from flafka.plugins.morphline.expressions import Expression
from flafka.plugins.morphline.record import Failed, MorphlineRecord, listed

_LEVELS = {
    "logTrace": 5, "logDebug": logging.DEBUG, "logInfo": logging.INFO, "logWarn": logging.WARNING,
    "logError": logging.ERROR,
}  # fmt: skip


def _nothing(record: MorphlineRecord) -> bool:
    return True


@command("pipe")
def pipe(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Commands one after the other, as a morphline itself is."""
    arguments.text("id")
    imports = arguments.texts("importCommands", ["org.**"])
    if not any(one.startswith(("org.kitesdk.", "com.cloudera.")) or one in ("org.**", "com.**") for one in imports):
        raise ValueError('imports none of Kite\'s commands: add "org.kitesdk.**" to importCommands')
    return compiler.chain(arguments.objects("commands"), child)


@command("if")
def if_then_else(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """`then` where all `conditions` succeed, else `else`; either goes on behind it."""
    conditions = arguments.objects("conditions")
    if not conditions:
        raise ValueError("needs conditions")
    condition = compiler.chain(conditions, _nothing)
    then = compiler.chain(arguments.objects("then"), child)
    otherwise = compiler.chain(arguments.objects("else"), child)
    return lambda record: then(record) if condition(record) else otherwise(record)


@command("not")
def negation(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Goes on where its command fails."""
    arguments.all()
    inner = compiler.build(arguments.given, _nothing)
    return lambda record: not inner(record) and child(record)


@command("tryRules")
def try_rules(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """The first rule that succeeds, with all that comes after it."""
    throws = arguments.truth("throwExceptionIfAllRulesFailed", True)
    catches = arguments.truth("catchExceptions", False)
    copies = arguments.truth("copyRecords", True)
    rules = []
    for one in arguments.objects("rules"):
        rule = Arguments(one)
        if commands := rule.objects("commands"):
            rules.append(compiler.chain(commands, child))

    def process(record: MorphlineRecord) -> bool:
        for rule in rules:
            try:
                if rule(record.copy() if copies else record):
                    return True
            except Failed:
                if not catches:
                    raise
        if throws:
            raise Failed("tryRules found no rule that succeeds")
        return False

    return process


@command("dropRecord")
def drop_record(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Ends here, with success."""
    arguments.all()
    return _nothing


@command("head")
def head(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Only so many records."""
    limit = arguments.whole("limit", -1)
    if limit < -1:
        raise ValueError("limit must be at least -1")
    left = limit

    def process(record: MorphlineRecord) -> bool:
        nonlocal left
        if left == 0:
            return True
        left -= left > 0
        return child(record)

    return process


@command("sample")
def sample(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Each record with a probability."""
    probability = arguments.fraction("probability", 1.0)
    if probability < 0:
        raise ValueError("probability must not be negative")
    drawn = random.Random(arguments.whole("seed", 0) if "seed" in arguments.given else None)
    return lambda record: drawn.random() > probability or child(record)


def _log(level: int) -> Builder:
    def build(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
        """A line in the log: each `{}` of `format` is the next of `args`."""
        parts = arguments.text("format").split("{}")
        expressions = [Expression(one) for one in arguments.texts("args", [])]

        def process(record: MorphlineRecord) -> bool:
            if compiler.log.isEnabledFor(level):
                values = [listed(one.values(record)) for one in expressions]
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
    """Nothing: the agent has metrics of its own."""
    arguments.all()
    return child
