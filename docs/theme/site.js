// Put a button on each block of code that copies it; of a session in a shell, only the commands.
document.querySelectorAll("div.highlight > pre").forEach((block) => {
  if (!navigator.clipboard) return; // a page that came by HTTP
  const text = block.textContent;
  const commands = [...text.matchAll(/^\$ ((?:.*\\\n)*.*)/gm)].map((match) => match[1]);
  const button = document.createElement("button");
  button.className = "copy";
  button.type = "button";
  button.ariaLive = "polite";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(commands.length ? commands.join("\n") : text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  block.parentElement.append(button);
});

// Let the keyboard scroll what is wider than the page, which not every browser does by itself.
const scrolled = new ResizeObserver((entries) => {
  for (const { target } of entries) target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
});
document.querySelectorAll("div.highlight > pre, .table-wrapper").forEach((block) => scrolled.observe(block));

// Name for screen readers what the theme leaves without a name.
document.querySelector(".sidebar-drawer").ariaLabel = "All pages";
document.querySelector(".toc-drawer").ariaLabel = "This page";
