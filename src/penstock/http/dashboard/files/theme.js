// Sets the theme before anything is drawn, so that the page does not flash. Not a module: it blocks.
{
  let theme = null;
  try {
    theme = localStorage.getItem("penstock.theme");
  } catch {
    /* storage is switched off */
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
