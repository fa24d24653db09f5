import no_such_module


def f(events, options):
    return no_such_module.processed(events)
