// Before the first paint: the colours that the viewer chose.
"use strict";
{
  try {
    const chosen = localStorage.getItem("sa_jobqueue.theme");
    if (chosen) document.documentElement.dataset.theme = chosen;
  } catch { /* a browser that keeps nothing */ }
}
