// Runs before the first paint, so that a chosen theme does not flash.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("harmony-theme"); } catch { /* storage may be forbidden */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
