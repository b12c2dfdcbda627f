"""Which chat template a server uses."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from anchorline.errors import ConfigError
from anchorline.llama.interface import ModelInfo, Tokenizer
from anchorline.prompt.control import special_text
from anchorline.prompt.probe import Capabilities, TemplateTokens, probe
from anchorline.prompt.template import ChatTemplate
from anchorline.prompt.turn_marks import TURN_MARKS, TurnMarks, marks_of

_FLAG = "--chat-template"
TEMPLATE_FILE_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedTemplate:
    """The template for plain requests, and the one for requests with tools (often the same)."""

    template: ChatTemplate
    name: str
    origin: str
    """Where it comes from: ``model file``, ``built in``, or the path of the file."""
    reason: str
    """Why it was taken."""
    capabilities: Capabilities
    tool_template: ChatTemplate
    tool_capabilities: Capabilities
    foreign: tuple[str, ...] = ()
    """Names of those that are built in and whose marks are no control tokens of the vocabulary."""

    @property
    def supports_tools(self) -> bool:
        """Whether the chosen template shows tools itself."""
        return self.capabilities.tools

    @property
    def words(self) -> str:
        """Which templates were taken and why, for people."""
        tools = "" if self.tool_template is self.template else f"; tools as in {self.tool_template.name}"
        return f"{self.name} ({self.origin}: {self.reason}){tools}"


@dataclass(frozen=True, slots=True)
class _Found:
    template: ChatTemplate
    origin: str
    reason: str
    family: TurnMarks | None = None
    """Of one that is built in."""


def template_tokens(tokenizer: Tokenizer) -> TemplateTokens:
    """The texts of the tokenizer's BOS and EOS."""
    return TemplateTokens(bos=special_text(tokenizer, tokenizer.bos), eos=special_text(tokenizer, tokenizer.eos))


def select_template(choice: str | None, info: ModelInfo, tokenizer: Tokenizer) -> SelectedTemplate:
    """The template called ``choice``: a built-in one, a name in the model file, or a Jinja file.

    None takes the model's own or, when it has none, the built-in one of the family whose turn marks are control
    tokens of the vocabulary. A template that shows no tools leaves requests with tools to the model's ``tool_use``
    template or else to that built-in one.
    Reads a file in the last case. Raises ConfigError naming --chat-template.
    """
    tokens, control = template_tokens(tokenizer), tokenizer.control_tokens.keys()
    found = _find(choice, info, control)
    families = [found.family]
    capabilities = probe(found.template, tokens)
    tool_template, tool_capabilities = found.template, capabilities
    if not capabilities.tools:
        tool_template, tool_capabilities, family = _tool_template(choice, info, tokens, control)
        families.append(family)
    return SelectedTemplate(
        template=found.template,
        name=found.template.name,
        origin=found.origin,
        reason=found.reason,
        capabilities=capabilities,
        tool_template=tool_template,
        tool_capabilities=tool_capabilities,
        foreign=tuple(family.name for family in families if family is not None and not family.fits(control)),
    )


def _tool_template(
    choice: str | None, info: ModelInfo, tokens: TemplateTokens, control: Collection[str]
) -> tuple[ChatTemplate, Capabilities, TurnMarks | None]:
    source = info.named_templates.get("tool_use")
    if choice is None and source is not None:
        template = ChatTemplate(source, name="tool_use")
        capabilities = probe(template, tokens)
        if capabilities.tools:
            return template, capabilities, None
    family = marks_of(control)
    template = family.template()
    return template, probe(template, tokens), family


def _find(choice: str | None, info: ModelInfo, control: Collection[str]) -> _Found:
    if choice is None:
        if info.chat_template is not None:
            return _Found(ChatTemplate(info.chat_template, name="default"), "model file", "its own")
        family = marks_of(control)
        known = f"has {', '.join(family.marks)}" if family.fits(control) else "has the marks of none that is built in"
        return _Found(family.template(), "built in", f"the model file has none, and its vocabulary {known}", family)
    if choice in TURN_MARKS:
        return _Found(TURN_MARKS[choice].template(), "built in", _FLAG, TURN_MARKS[choice])
    if choice in info.named_templates:
        return _Found(ChatTemplate(info.named_templates[choice], name=choice), "model file", _FLAG)
    if choice == "default" and info.chat_template is not None:
        return _Found(ChatTemplate(info.chat_template, name="default"), "model file", _FLAG)
    return _Found(_read(choice, info), choice, _FLAG)


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
            f"--chat-template: {choice!r} is neither a built-in template ({', '.join(sorted(TURN_MARKS))}), "
            f"nor one in the model file ({', '.join(in_model) or 'it has none'}), nor a file"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"--chat-template: {choice} cannot be read: {error}") from error
