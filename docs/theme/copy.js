// Put a button on each block of code that copies it; of a session in a shell, only the commands.
document.querySelectorAll("div.highlight > pre").forEach((block) => {
  const button = document.createElement("button");
  button.className = "copy";
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const lines = block.textContent.split("\n");
    const commands = lines.filter((line) => line.startsWith("$ ")).map((line) => line.slice(2));
    await navigator.clipboard.writeText(commands.length ? commands.join("\n") : block.textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  block.parentElement.append(button);
});
