// Keeps the page for use without a network: its own files at once, a model file when it is first opened. VERSION is the digest of the
// other files of the folder and of what artifacts.json is made of, so that a folder that is packed anew replaces what was kept.
const VERSION = "$version";
const PREFIX = `pocketbert ${registration.scope} `;

self.addEventListener("install", (event) => {
  const keep = async () => {
    const list = await (await fetch("artifacts.json", { cache: "no-cache" })).json();
    const own = list.files.filter((file) => file.kind !== "model" && file.path !== "sw.js").map((file) => file.path);
    const cache = await caches.open(PREFIX + VERSION);
    await cache.addAll(["./", "artifacts.json", ...own].map((path) => new Request(path, { cache: "no-cache" })));
    await self.skipWaiting();
  };
  event.waitUntil(keep());
});

self.addEventListener("activate", (event) => {
  const drop = async () => {
    const old = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== PREFIX + VERSION);
    await Promise.all(old.map((name) => caches.delete(name)));
    await self.clients.claim();
  };
  event.waitUntil(drop());
});

self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || !request.url.startsWith(registration.scope)) return;
  const answer = async () => {
    const cache = await caches.open(PREFIX + VERSION);
    const kept = await cache.match(request, { ignoreSearch: true });
    if (kept) return kept;
    const fetched = await fetch(request);
    if (fetched.ok) await cache.put(request, fetched.clone()).catch(() => {}); // a full disk: the page works all the same
    return fetched;
  };
  event.respondWith(answer());
});
