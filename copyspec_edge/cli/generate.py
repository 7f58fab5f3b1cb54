"""`copyspec-edge generate`: one prompt, one answer."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace

from copyspec_edge.answer import Answer
from copyspec_edge.chat import Reply
from copyspec_edge.cli.options import (
    add_exact_option,
    add_model_options,
    add_sampling_options,
    decoded,
    follow,
    load_model,
    open_session,
    sampling_params,
    summary,
    text_of,
)
from copyspec_edge.errors import ChatTemplateError, InvalidInputError
from copyspec_edge.model import Model
from copyspec_edge.sampling import SamplingParams
from copyspec_edge.session import Session


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command."""
    parser = commands.add_parser("generate", help="write an answer to a prompt")
    add_model_options(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("-p", "--prompt", metavar="TEXT", help="default: read from stdin")
    source.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--raw", action="store_true", help="no chat template: continue the prompt")
    add_sampling_options(parser)
    add_exact_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument(
        "--logprobs", type=int, metavar="N", help="with --json: of each token and the N likeliest"
    )
    parser.set_defaults(run=generate)


def generate(arguments: argparse.Namespace) -> int:
    """Run the command."""
    params = replace(sampling_params(arguments), logprobs=arguments.logprobs)
    if arguments.logprobs is not None and not arguments.json:
        raise InvalidInputError("--logprobs are printed with --json only")
    if arguments.raw and arguments.system is not None:
        raise InvalidInputError("--system needs the chat template, which --raw leaves out")
    prompt = _read_prompt(arguments)
    if not prompt.strip():
        raise InvalidInputError("the prompt is empty")
    with load_model(arguments) as model:
        chats = _chats(model, arguments)
        with open_session(model, arguments) as session:
            answer = _ask(session, prompt, params, chats=chats)
            reply = follow(answer, show=not arguments.json)
    if arguments.json:
        takes_all = (sys.stdout.encoding or "").lower().startswith("utf")
        print(json.dumps(_as_dict(reply), ensure_ascii=not takes_all))
    else:
        print()
        print(summary(reply.stats), file=sys.stderr)
    return 1 if reply.finish_reason == "cancelled" else 0


def _read_prompt(arguments: argparse.Namespace) -> str:
    if arguments.prompt is not None:
        return str(arguments.prompt)
    text = text_of(arguments.file)
    if text is not None:
        return text
    return decoded(sys.stdin.buffer.read(), "the prompt") if sys.stdin else ""


def _chats(model: Model, arguments: argparse.Namespace) -> bool:
    if arguments.raw or model.can_chat:
        return not arguments.raw
    if arguments.system is not None:
        raise ChatTemplateError("this model has no chat template, so no system message either")
    print("This model has no chat template: continuing the prompt as it is.", file=sys.stderr)
    return False


def _ask(session: Session, prompt: str, params: SamplingParams, *, chats: bool) -> Answer:
    ask = session.stream if chats else session.stream_completion
    return ask(prompt, params=params)


def _as_dict(reply: Reply) -> dict[str, object]:
    facts: dict[str, object] = {
        "text": reply.text,
        "token_ids": list(reply.token_ids),
        "finish_reason": reply.finish_reason,
        "stats": reply.stats.as_dict(),
    }
    if reply.logprobs:
        facts["logprobs"] = [asdict(logprob) for logprob in reply.logprobs]
    return facts
