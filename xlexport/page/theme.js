// Light or dark: as the system has it, until somebody chooses.
const root = document.documentElement;

export const theme = {
  get chosen() {
    return root.dataset.theme;
  },

  choose(name) {
    if (name === undefined) delete root.dataset.theme;
    else root.dataset.theme = name;
  },

  change() {
    const isDark = theme.chosen ? theme.chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    theme.choose(isDark ? "light" : "dark");
  },
};
