"""The documentation site: `sphinx-build -n -W --keep-going -b html docs OUT`. Nothing is fetched.

What is special to it is in docs/_ext: the figures and the reference.
"""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import rc_jax  # noqa: E402

project = "rc_jax"
author = "The rc_jax authors"
copyright = "2026, The rc_jax authors"
version = release = rc_jax.__version__

extensions = [
    "myst_nb",  # Markdown pages, and notebooks, which are run
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",  # copies the code of an example, without its prompts and its output
    "sphinx-mathjax-offline",  # the site fetches nothing: MathJax lies beside its pages
    "figures",  # the rest: docs/_ext
    "reference",
]
exclude_patterns = [
    "_ext",
    "dev",
    "pictures",
    "notebooks/*.md",
    "notebooks/*.py",
    "notebooks/README.*",
    "**.ipynb_checkpoints",
]
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!rc_jax).*")]  # other packages' names are not looked up: there is no network
suppress_warnings = ["mystnb.unknown_mime_type"]

# Pages
highlight_language = "none"  # an indented formula is not Python
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_links_external_new_tab = False
figures_results = os.environ.get("RC_JAX_RESULTS", str(HERE.parent / "results" / "quick"))

copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

# Notebooks
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
nb_execution_excludepatterns = ["*.md"]

# API
autodoc_typehints = "signature"
autodoc_typehints_format = "fully-qualified"  # reference.readable shortens them
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # the signature has the types already
napoleon_use_rtype = False
napoleon_custom_sections = ["Formula", "Source", "Sources", "Units", "Shapes"]
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

# HTML
html_theme = "furo"
html_title = f"rc_jax {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072b2", "color-brand-content": "#0072b2"},
    "dark_css_variables": {"color-brand-primary": "#4fa8e0", "color-brand-content": "#4fa8e0"},
}
