"""Commands that know Solr."""

from __future__ import annotations

from flafka.plugins.morphline.arguments import Arguments
from flafka.plugins.morphline.compiler import Compiler, Process, command
from flafka.plugins.morphline.record import Failed, MorphlineRecord, text

_DELETES = ("_loadSolr_deleteById", "_loadSolr_deleteByQuery")
_LOADERS_OWN = (*_DELETES, "_loadSolr_childDocuments")


def _locator(arguments: Arguments, compiler: Compiler) -> None:
    locator = arguments.object("solrLocator", required=True)
    known = ("collection", "zkHost", "solrUrl", "solrHomeDir", "batchSize")
    if unknown := [name for name in locator if name not in known]:
        raise ValueError(f"does not know solrLocator.{unknown[0]}")
    compiler.locators.append(("", locator))


@command("loadSolr")
def load_solr(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """The record as a document of Solr."""
    _locator(arguments, compiler)
    if arguments.object("boosts"):
        raise ValueError("has boosts, which Solr no longer knows: remove them, and boost in queries")

    def process(record: MorphlineRecord) -> bool:
        if named := next((name for name in _LOADERS_OWN if name in record), None):
            raise Failed(f"the record has a field {named}, and loadSolr only adds documents here")
        if compiler.load is None:
            raise Failed("loadSolr works only in the sink solr")
        compiler.load(record)
        return child(record)

    return process


@command("sanitizeUnknownSolrFields")
def sanitize_unknown_solr_fields(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Without, or with other names for, the fields that Solr's schema does not have."""
    _locator(arguments, compiler)
    prefix = arguments.text("renameToPrefix", "").strip()

    def process(record: MorphlineRecord) -> bool:
        for name in record:
            if name in _LOADERS_OWN or compiler.known_fields(name):
                continue
            if prefix:
                record[prefix + name].extend(record[name])
            del record[name]
        return child(record)

    return process


@command("generateSolrSequenceKey", "sanitizeUniqueSolrKey")
def generate_solr_sequence_key(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """The unique key: another field's value, and the number of the record within its event."""
    _locator(arguments, compiler)
    base = arguments.text("baseIdField", "base_id")
    preserve = arguments.truth("preserveExisting", True)
    number = 0

    def restart() -> None:
        nonlocal number
        number = 0

    def process(record: MorphlineRecord) -> bool:
        nonlocal number
        key = compiler.unique_key
        if not (preserve and key in record):
            if base not in record:
                raise Failed(f"the record has no {base}, of which {key} is made")
            record[key] = [f"{text(record[base][0])}#{number}"]
        number += 1
        return child(record)

    compiler.on_event.append(restart)
    return process
