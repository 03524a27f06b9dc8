"""The commands, one module each: ``DESCRIPTION`` and ``EPILOG`` for its help, and ``OPTIONS`` with
``execute(args)``, or ``ACTIONS`` where it does several things. ``proxyfl.cli.main`` lists them."""
