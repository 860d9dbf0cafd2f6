"""The command line, `akc`: one subcommand per job, each importing only what it runs.

The controller's subcommands work without torch, the engine's without the controller's extras.
"""

import sys
from importlib.metadata import version


def main() -> None:
    """Entry point of the `akc` command."""
    try:
        if sys.argv[1:] == ["--version"]:  # asked of the plug-in's bare install, too, which has no command line
            print(version("adaptive-k-controller"))
            return
        from controller.cli.commands import app

        app()
    except ModuleNotFoundError as error:
        print(
            f"akc needs the package {error.name!r}, which is not installed here. Install the part you want to run: "
            "pip install 'adaptive-k-controller[controller]', '[engine]' or '[demo]'.",
            file=sys.stderr,
        )
        sys.exit(2)
