"""From requests to prompts: chat templates, cuts, tool fingerprint, tokenising with memo."""

from anchorline.prompt.builder import BuiltPrompt, PromptBuilder
from anchorline.prompt.fingerprint import tool_fingerprint
from anchorline.prompt.select import SelectedTemplate, select_template, template_tokens
from anchorline.prompt.template import ChatTemplate
from anchorline.prompt.turn_marks import TURN_MARKS

__all__ = [
    "TURN_MARKS",
    "BuiltPrompt",
    "ChatTemplate",
    "PromptBuilder",
    "SelectedTemplate",
    "select_template",
    "template_tokens",
    "tool_fingerprint",
]
