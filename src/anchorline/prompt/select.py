"""Which chat template a server uses."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from anchorline.errors import ConfigError
from anchorline.llama.interface import ModelInfo, Tokenizer
from anchorline.prompt.control import special_text
from anchorline.prompt.probe import Capabilities, TemplateTokens, probe
from anchorline.prompt.template import ChatTemplate

BUILTIN_TEMPLATES = ("chatml", "hermes")

TEMPLATE_FILE_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedTemplate:
    """The template for plain requests, and the one for requests with tools (often the same)."""

    template: ChatTemplate
    name: str
    origin: str
    """Where it comes from: ``model file``, ``built in``, or the path of the file."""
    capabilities: Capabilities
    tool_template: ChatTemplate
    tool_capabilities: Capabilities

    @property
    def supports_tools(self) -> bool:
        """Whether the chosen template shows tools itself."""
        return self.capabilities.tools


def template_tokens(tokenizer: Tokenizer) -> TemplateTokens:
    """The texts of the tokenizer's BOS and EOS."""
    return TemplateTokens(bos=special_text(tokenizer, tokenizer.bos), eos=special_text(tokenizer, tokenizer.eos))


def builtin_template(name: str) -> ChatTemplate:
    """One of BUILTIN_TEMPLATES."""
    source = resources.files("anchorline.prompt").joinpath("builtin", f"{name}.jinja").read_text("utf-8")
    return ChatTemplate(source, name=name)


def select_template(choice: str | None, info: ModelInfo, *, tokens: TemplateTokens) -> SelectedTemplate:
    """The template called ``choice``: a built-in one, a name in the model file, or a Jinja file.

    None takes the model's own, or ``chatml`` when it has none. A template that shows no tools leaves
    requests with tools to the model's ``tool_use`` template or else to the built-in ``hermes``.
    Reads a file in the last case. Raises ConfigError naming --chat-template.
    """
    template, origin = _find(choice, info)
    capabilities = probe(template, tokens)
    tool_template, tool_capabilities = template, capabilities
    if not capabilities.tools:
        tool_template, tool_capabilities = _tool_template(choice, info, tokens)
    return SelectedTemplate(
        template=template,
        name=template.name,
        origin=origin,
        capabilities=capabilities,
        tool_template=tool_template,
        tool_capabilities=tool_capabilities,
    )


def _tool_template(choice: str | None, info: ModelInfo, tokens: TemplateTokens) -> tuple[ChatTemplate, Capabilities]:
    source = info.named_templates.get("tool_use")
    if choice is None and source is not None:
        template = ChatTemplate(source, name="tool_use")
        capabilities = probe(template, tokens)
        if capabilities.tools:
            return template, capabilities
    template = builtin_template("hermes")
    return template, probe(template, tokens)


def _find(choice: str | None, info: ModelInfo) -> tuple[ChatTemplate, str]:
    if choice is None:
        if info.chat_template is not None:
            return ChatTemplate(info.chat_template, name="default"), "model file"
        return builtin_template("chatml"), "built in"
    if choice in BUILTIN_TEMPLATES:
        return builtin_template(choice), "built in"
    if choice in info.named_templates:
        return ChatTemplate(info.named_templates[choice], name=choice), "model file"
    if choice == "default" and info.chat_template is not None:
        return ChatTemplate(info.chat_template, name="default"), "model file"
    return _read(choice, info), choice


def _read(choice: str, info: ModelInfo) -> ChatTemplate:
    path = Path(choice)
    try:
        # A pipe or a device could keep the server waiting; not to wait does not change how a file is read.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            kind = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(kind):
                raise ConfigError(f"--chat-template: {choice} is not a regular file")
            data = file.read(TEMPLATE_FILE_LIMIT_BYTES + 1)
        if len(data) > TEMPLATE_FILE_LIMIT_BYTES:
            raise ConfigError(f"--chat-template: {choice} is larger than {TEMPLATE_FILE_LIMIT_BYTES} bytes")
        return ChatTemplate(data.decode(), name=path.name)
    except (FileNotFoundError, IsADirectoryError) as error:
        in_model = [*(["default"] if info.chat_template is not None else []), *info.named_templates]
        raise ConfigError(
            f"--chat-template: {choice!r} is neither a built-in template ({', '.join(BUILTIN_TEMPLATES)}), "
            f"nor one in the model file ({', '.join(in_model) or 'it has none'}), nor a file"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"--chat-template: {choice} cannot be read: {error}") from error
