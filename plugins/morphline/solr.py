"""Commands for Solr."""

from __future__ import annotations

from flafka.plugins.morphline.arguments import Arguments
from flafka.plugins.morphline.compiler import Compiler, Process, command
from flafka.plugins.morphline.record import MorphlineRecord, MorphlineRuntimeError, to_java_string

_DELETES = ("_loadSolr_deleteById", "_loadSolr_deleteByQuery")
_RESERVED_FIELDS = (*_DELETES, "_loadSolr_childDocuments")


def _locator(arguments: Arguments, compiler: Compiler) -> None:
    """Record the required argument `solrLocator` of a command.

    Raises ValueError for a name that Kite does not know.
    """
    locator = arguments.object("solrLocator", required=True)
    known = ("collection", "zkHost", "solrUrl", "solrHomeDir", "batchSize")
    if unknown := [name for name in locator if name not in known]:
        raise ValueError(f"does not know solrLocator.{unknown[0]}")
    compiler.solr_locators.append(("", locator))


@command("loadSolr")
def load_solr(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `loadSolr`, which passes the record to the sink as a document, and on to later commands.

    The command raises MorphlineRuntimeError in another component than the sink `solr`, and for deletions and child
    documents.
    """
    _locator(arguments, compiler)
    if arguments.object("boosts"):
        raise ValueError("has boosts, which Solr no longer supports: remove them, and boost in queries")

    def process(record: MorphlineRecord) -> bool:
        if reserved := next((name for name in _RESERVED_FIELDS if name in record), None):
            raise MorphlineRuntimeError(f"the record has a field {reserved}, and loadSolr only adds documents here")
        if compiler.load_document is None:
            raise MorphlineRuntimeError("loadSolr works only in the sink solr")
        compiler.load_document(record)
        return child(record)

    return process


@command("sanitizeUnknownSolrFields")
def sanitize_unknown_solr_fields(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `sanitizeUnknownSolrFields`, which removes fields that Solr's schema lacks.

    With `renameToPrefix` they are renamed instead.
    """
    _locator(arguments, compiler)
    prefix = arguments.text("renameToPrefix", "").strip()

    def process(record: MorphlineRecord) -> bool:
        for name in record:
            if name in _RESERVED_FIELDS or compiler.is_known_field(name):
                continue
            if prefix:
                record[prefix + name].extend(record[name])
            del record[name]
        return child(record)

    return process


@command("generateSolrSequenceKey", "sanitizeUniqueSolrKey")
def generate_solr_sequence_key(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `generateSolrSequenceKey`: the unique key is the base field and the record's number in its event, from 0.

    An existing key stays with `preserveExisting`. The command raises MorphlineRuntimeError without a base field.
    """
    _locator(arguments, compiler)
    base = arguments.text("baseIdField", "base_id")
    preserve = arguments.boolean("preserveExisting", True)
    number = 0

    def reset_number() -> None:
        nonlocal number
        number = 0

    def process(record: MorphlineRecord) -> bool:
        nonlocal number
        key = compiler.unique_key
        if not (preserve and key in record):
            if base not in record:
                raise MorphlineRuntimeError(f"the record has no {base}, from which {key} is generated")
            record[key] = [f"{to_java_string(record[base][0])}#{number}"]
        number += 1
        return child(record)

    compiler.event_hooks.append(reset_number)
    return process
