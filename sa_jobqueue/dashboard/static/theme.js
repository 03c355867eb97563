// Before the first paint: the colours that the viewer chose.
"use strict";
{
  const chosen = localStorage.getItem("sa_jobqueue.theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
}
