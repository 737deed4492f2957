// Runs before the first paint, so that the page does not flash in the other theme.
{
  const theme = localStorage.getItem("pgpu-theme");
  if (theme) document.documentElement.dataset.theme = theme;
}
