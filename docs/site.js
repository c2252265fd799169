// A region that scrolls can be reached with the keyboard: the theme wraps wide tables, and leaves that out.
function reachable() {
  for (const region of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (region.scrollWidth > region.clientWidth) {
      region.tabIndex = 0;
      region.setAttribute("role", "region");
      region.setAttribute("aria-label", "Table");
    } else {
      region.removeAttribute("tabindex");
      region.removeAttribute("role");
      region.removeAttribute("aria-label");
    }
  }
}
window.addEventListener("load", reachable);
window.addEventListener("resize", reachable);
