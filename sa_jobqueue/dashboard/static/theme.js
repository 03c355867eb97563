// Before the first paint: the colours that the viewer chose, and room for what scripts draw.
"use strict";
{
  document.documentElement.classList.add("scripted");
  try {
    const chosen = localStorage.getItem("sa_jobqueue.theme");
    if (chosen) document.documentElement.dataset.theme = chosen;
  } catch { /* a browser that keeps nothing */ }
}
