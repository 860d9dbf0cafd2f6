"""`akc vet`: does this draft fit this target in vLLM?"""

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from controller.cli.extras import missing


def register(app: typer.Typer) -> None:
    """Add the command to `akc`."""
    app.command(rich_help_panel="Try offline")(vet)


def vet(
    target: Annotated[Path | None, typer.Argument(help="Hugging Face folder of the target.")] = None,
    draft: Annotated[Path | None, typer.Argument(help="Hugging Face folder of the draft.")] = None,
    k: Annotated[int, typer.Option(min=1, max=32, help="num_speculative_tokens of the suggestion.")] = 5,
    pad_to: Annotated[Path | None, typer.Option(help="Write a copy of the draft with the target's rows here.")] = None,
    from_flags: Annotated[str | None, typer.Option(help="A command line with removed flags, to translate.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Does this draft fit this target? Exit 0: as it is, 3: with a change, 4: poorly, 5: not at all, 2: bad input.

    Example: akc vet /models/Qwen2.5-72B-Instruct-AWQ /models/Qwen2.5-0.5B-Instruct
    """
    try:
        from engine.vet.flags import FlagsError
        from engine.vet.folder import FolderError
    except ModuleNotFoundError as error:
        raise missing(error, "engine") from None
    try:
        if from_flags is not None:
            status = _translate(from_flags, target, draft, k, json)
        else:
            status = _compare(target, draft, k, pad_to, json)
    except (FolderError, FlagsError) as error:
        typer.echo(f"akc: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(status)


def _translate(line: str, target: Path | None, draft: Path | None, k: int, json: bool) -> int:
    """Print today's form of a command line, checked against the models where they are here; returns the exit status."""
    from engine.vet.flags import translate
    from engine.vet.folder import read_folder
    from engine.vet.pair import vet as compare

    translated = translate(line)
    target = target or (Path(translated.target) if translated.target else None)
    draft = draft or (Path(translated.draft) if translated.draft else None)
    verdict = None
    if target and draft and target.is_dir() and draft.is_dir():
        verdict = compare(read_folder(target), read_folder(draft), k=k)
        translated = translate(line, heterogeneous=bool((verdict.config or {}).get("use_heterogeneous_vocab")))
    if json:
        typer.echo(jsonlib.dumps({**translated._asdict(), "verdict": verdict and verdict.asdict()}))
        return verdict.exit if verdict else 0
    typer.echo(translated.command)
    for remark in translated.remarks:
        typer.echo(f"# {remark}")
    if verdict:
        typer.echo(f"# {verdict.sentence}")
        if verdict.context:
            typer.echo(f"# {verdict.context}")
    elif draft:
        typer.echo("# the models are not here, so the pair was not vetted")
    return verdict.exit if verdict else 0


def _compare(target: Path | None, draft: Path | None, k: int, pad_to: Path | None, json: bool) -> int:
    """Print what two folders make of each other; returns the exit status."""
    from engine.vet.folder import FolderError, read_folder
    from engine.vet.padding import pad_to as write_padded
    from engine.vet.pair import as_flag
    from engine.vet.pair import vet as compare

    if target is None or draft is None:
        raise FolderError("two folders are needed, TARGET and DRAFT, or --from-flags")
    large, small = read_folder(target), read_folder(draft)
    verdict = compare(large, small, k=k)
    if pad_to is not None:
        if verdict.kind != "padded":
            raise FolderError(f"--pad-to is for one tokenizer padded to two sizes; this pair: {verdict.sentence}")
        write_padded(draft, pad_to, large.size)
        verdict = compare(large, read_folder(pad_to), k=k)
    if json:
        typer.echo(jsonlib.dumps(verdict.asdict()))
        return verdict.exit
    typer.echo(f"{verdict.kind}: {verdict.sentence}")
    if verdict.ratio is not None:
        typer.echo(f"a pass of the draft reads {verdict.ratio:.3f} of what the target reads")
    if verdict.context is not None:
        typer.echo(verdict.context)
    if verdict.config is not None:
        typer.echo(f"--speculative-config '{as_flag(verdict.config)}'")
    return verdict.exit
