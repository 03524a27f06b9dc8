// Follow a run while it runs: ask for what is new, add it, and draw. The server forgets us between two questions.

function follow() {
  const status = document.getElementById("status"),
    pause = document.getElementById("pause");
  const soon = 0.05; // the server sets the pace: it answers when there is news
  let cursor = page.live.cursor,
    wait = soon,
    timer = null,
    question = null,
    paused = false,
    over = false,
    news = Date.now();
  status.hidden = pause.hidden = false;

  function say(text) {
    if (status.textContent !== text) status.textContent = text;
  }
  function where() {
    const run = page.runs[0];
    const now = Object.entries(run.progress)
      .filter(([, done]) => done > 0)
      .at(-1);
    return now ? `${now[0]}, round ${now[1]} of ${run.rounds}` : "waiting for the first round";
  }
  // The bar: all rounds of all methods, the method under way, the time left for all.
  function showPace() {
    const { share, method, methods: all, words } = page.live.pace;
    const bar = document.getElementById("done"),
      pace = document.getElementById("pace");
    bar.hidden = pace.hidden = over;
    bar.value = share;
    const percent = `${Math.round(100 * share)} %`;
    bar.setAttribute("aria-valuetext", percent);
    pace.textContent = [`${percent}`, all > 1 ? `method ${method} of ${all}` : null, words ? `about ${words} left` : null]
      .filter(Boolean)
      .join(" \u00b7 ");
  }
  function next(seconds) {
    clearTimeout(timer);
    if (!over && !paused && !document.hidden) timer = setTimeout(ask, 1000 * seconds);
  }

  async function ask() {
    question?.abort();
    const mine = (question = new AbortController());
    const limit = setTimeout(() => mine.abort(), 20000);
    try {
      const url = new URL("data.json", location.href);
      url.search = location.search;
      url.searchParams.set("since", cursor);
      url.searchParams.set("wait", "1");
      const answer = await fetch(url, { cache: "no-store", signal: mine.signal });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      take(await answer.json());
      wait = soon;
    } catch {
      if (mine !== question || paused) return; // given up on purpose
      // The run's process may be paused, restarted or gone. Asking again costs nothing; ask more and more rarely.
      wait = Math.min(15, Math.max(1, 2 * wait));
      say(`Not reachable (${where()}). The run may have ended, or be paused; trying again every ${wait} seconds.`);
    } finally {
      clearTimeout(limit);
    }
    next(wait);
  }

  function take(more) {
    const fresh = more.document !== null;
    cursor = more.cursor;
    over = more.done;
    if (fresh) Object.assign(page, more.document);
    showPace();
    if (fresh) news = Date.now();
    const quiet = Math.floor((Date.now() - news) / 60000);
    pause.hidden = over;
    say(
      over
        ? `${page.runs[0].finished ? "Finished" : "Ended before its last round"}: ${where()}.`
        : `Live: ${where()}.${quiet ? ` Nothing new for ${quiet} min: a long round, or the run was stopped.` : ""}`,
    );
    document.body.dataset.live = over ? "over" : "on";
    if (fresh) update();
  }

  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume updates" : "Pause updates";
    if (paused) {
      clearTimeout(timer);
      question?.abort();
      say(`Paused: ${where()}. The run continues.`);
    } else ask();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !paused && !over) ask();
  });
  say(`Live: ${where()}.`);
  showPace();
  document.body.dataset.live = "on";
  next(soon);
}
