"""The subcommands of `akc`. Each imports what it runs when it runs: `akc --help` needs neither torch nor scipy."""

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from controller.cli import look, replay, route, simulate, state, steer, vet, whatif

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Adaptive K: tunes speculative decoding while it serves.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
models = typer.Typer(no_args_is_help=True, help="Model weights and prompts out of public packages.")
app.add_typer(models, name="models", rich_help_panel="Run")

ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file; environment and flags override it.")]
LogFormat = Annotated[str | None, typer.Option(help=r"Of log lines: text or json \[text]")]
RedisUrl = Annotated[
    str | None, typer.Option(help=r"redis://, rediss://, unix://, redis+sentinel:// \[env: REDIS_URL]")
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("adaptive-k-controller"))
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


def _settings(cls: Any, file: Path | None, flags: dict[str, Any]) -> Any:
    """The process's settings; a bad one ends the command with its message, not a traceback."""
    from engine.link.settings import SettingsError, load

    try:
        given = {key: value for key, value in flags.items() if value not in (None, [])}
        return load(cls, file=file, flags=given, source="command line")
    except SettingsError as error:
        typer.echo(f"akc: {error}", err=True)
        raise typer.Exit(2) from None


@models.command("fetch")
def models_fetch(
    cache: Annotated[Path | None, typer.Option(help=r"Folder to keep models in \[env: AKC_CACHE]")] = None,
) -> None:
    """Fetch SmolLM2-135M-Instruct and the prompts of the three domains. Example: akc models fetch"""
    from engine.models import FetchError, fetch_smollm2, load_prompts

    try:
        folder = fetch_smollm2(cache)
        prompts = load_prompts(cache)
    except FetchError as error:
        typer.echo(f"akc: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"model:   {folder}")
    typer.echo("prompts: " + ", ".join(f"{domain} {len(items)}" for domain, items in prompts.items()))


@app.command(rich_help_panel="Run")
def controller(
    config: ConfigFile = None,
    redis_url: RedisUrl = None,
    pools: Annotated[str | None, typer.Option(help="Pools to serve, by commas; all that engines announce.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [8080]")] = None,
    log_level: Annotated[str | None, typer.Option(help="critical, error, warning, info or debug")] = None,
    log_format: LogFormat = None,
) -> None:
    """Run the controller: learn from frames, decide, publish, answer questions. Example: akc controller --port 8080"""
    # Its matrices are small: a second thread would only spin, and take a core from an engine beside it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from controller.app import run
    from controller.settings import ControllerSettings
    from controller.tokens import TokenError
    from engine.link.settings import SettingsError

    flags = {"redis_url": redis_url, "pools": pools, "host": host, "port": port, "log_level": log_level}
    flags |= {"log_format": log_format}
    try:
        run(_settings(ControllerSettings, config, flags))
    except (SettingsError, TokenError) as error:
        typer.echo(f"akc: {error}", err=True)
        raise typer.Exit(2) from None


@app.command(rich_help_panel="Run")
def engine(
    config: ConfigFile = None,
    redis_url: RedisUrl = None,
    target: Annotated[str | None, typer.Option(help="Local Hugging Face folder, or `smollm2` (fetched).")] = None,
    draft: Annotated[
        list[str] | None, typer.Option(help="`ngram`, or [NAME=]FOLDER of a decoder or EAGLE-style head; repeatable.")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Engines with the same target, drafts and hardware.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [8000]")] = None,
    max_batch: Annotated[int | None, typer.Option(help="Requests decoded together.")] = None,
    max_len: Annotated[int | None, typer.Option(help="Tokens of context per request.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32 or bfloat16")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads for torch; all cores.")] = None,
    static_draft: Annotated[str | None, typer.Option(help=r"Draft while there is no policy \[none]")] = None,
    static_k: Annotated[int | None, typer.Option(help="K while there is no policy [0]")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write one JSON line per request into this folder.")] = None,
    offline: Annotated[bool | None, typer.Option(help="No Redis: the static draft and K only.")] = None,
    log_format: LogFormat = None,
) -> None:
    """Serve a model with the torch engine, OpenAI-compatible. Example: akc engine --draft ngram --port 8000"""
    # OpenMP reads this when torch is loaded. Threads that spin between kernels are quickest on cores of their own; here
    # the HTTP server and whatever shares the machine wait for them (docs/decisions.md has figures).
    if "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from engine.server import EngineSettings, run

    flags = {
        "redis_url": redis_url, "target": target, "drafts": draft, "pool": pool, "host": host, "port": port,
        "max_batch": max_batch, "max_len": max_len, "dtype": dtype, "threads": threads, "static_draft": static_draft,
        "static_k": static_k, "trace_dir": None if trace is None else str(trace), "offline": offline,
        "log_format": log_format,
    }  # fmt: skip
    run(_settings(EngineSettings, config, flags))


@app.command(rich_help_panel="Run")
def traffic(
    config: ConfigFile = None,
    url: Annotated[str | None, typer.Option(help=r"The engine's address \[http://127.0.0.1:8000]")] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop after so long [60]")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests in flight [4]")] = None,
    mix: Annotated[list[str] | None, typer.Option(help="Weight of a domain, as in code=2; repeatable.")] = None,
    max_tokens: Annotated[
        list[str] | None, typer.Option(help="Tokens per answer, 128 or code=256; repeatable.")
    ] = None,
    labels: Annotated[bool | None, typer.Option(help="Send the domain along, or let the engine guess it.")] = None,
    heartbeat: Annotated[
        Path | None, typer.Option(help="Write this file anew after every answered request; its age shows health.")
    ] = None,
) -> None:
    """Send real prompts of three domains to an engine. Example: akc traffic --mix code=2 --mix chat=1"""
    from engine.traffic import TrafficSettings, run

    flags = {
        "url": url, "seconds": seconds, "concurrency": concurrency, "mix": mix, "max_tokens": max_tokens,
        "labels": labels, "heartbeat": None if heartbeat is None else str(heartbeat),
    }  # fmt: skip
    raise typer.Exit(run(_settings(TrafficSettings, config, flags)))


def _seed(given: str | int) -> int:
    if not str(given).isdecimal():
        raise typer.BadParameter(f"{given!r} is not a whole number of 0 or more")
    return int(given)


def _check_demo(drafts: list[str], results: Path | None) -> None:
    """End with code 2 and a message for what would otherwise fail minutes later, or in another process's log."""
    for item in drafts:
        source = item.partition("=")[2] or item
        if source != "ngram" and not Path(source).expanduser().is_dir():
            typer.echo(f"akc demo: --draft is {item!r}; allowed: ngram, or [NAME=]FOLDER that exists", err=True)
            raise typer.Exit(2)
    if results is None:
        return
    folder = results.absolute().parent
    writable = os.access(results, os.W_OK) if results.exists() else os.access(folder, os.W_OK)
    if results.is_dir() or not folder.is_dir() or not writable:
        typer.echo(f"akc demo: --json is {str(results)!r}, which cannot be written as a file", err=True)
        raise typer.Exit(2)


@app.command(rich_help_panel="Run")
def demo(
    keep: Annotated[bool, typer.Option(help="Stay up afterwards and print the addresses.")] = False,
    draft: Annotated[list[str] | None, typer.Option(help="As for akc engine; repeatable.")] = None,
    quick: Annotated[bool, typer.Option(help="A short run: shows that everything works, measures little.")] = False,
    seed: Annotated[
        int, typer.Option(parser=_seed, metavar="INTEGER", help="Order of the prompts and the controller's draws.")
    ] = 0,
    json: Annotated[Path | None, typer.Option(help="Write the measured results to this file.")] = None,
    learn_seconds: Annotated[float, typer.Option(help="Seconds of traffic before anything is measured.")] = 90.0,
) -> None:
    """The whole loop on this machine: watch K part ways by domain, then compare. Example: akc demo --keep"""
    _check_demo(draft or [], json)
    from controller.cli.demo.run import DemoError, DemoOptions, run

    try:
        run(
            DemoOptions(
                keep=keep, quick=quick, seed=seed, json=json, learn_seconds=learn_seconds, drafts=tuple(draft or ())
            )
        )
    except DemoError as error:
        typer.echo(f"akc demo: {error}", err=True)
        sys.exit(1)


for module in (look, whatif, steer, state, route, simulate, replay, vet):
    module.register(app)
