// Browsers refuse workers to a page that was opened from the disk. There the search runs in a hidden
// frame, with the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><html><body></body></html>";
      frame.onload = () => {
        if (this.inner) return;
        this.inner = frame.contentWindow;
        const load = (source) =>
          new Promise((resolve, reject) => {
            const script = this.inner.document.createElement("script");
            Object.assign(script, { src: source, onload: resolve, onerror: reject });
            this.inner.document.body.append(script);
          });
        this.inner.postMessage = (data) => this.tell(this, data);
        this.inner.importScripts = async (...urls) => {
          for (const one of urls) await load(new URL(one, url));
        };
        load(url).then(() => {
          this.ready = true;
          this.waiting.splice(0).forEach((data) => this.postMessage(data));
        });
      };
      document.body.append(frame);
    }
    tell(target, data) {
      const event = new MessageEvent("message", { data });
      target.dispatchEvent(event);
      if (target === this && this.onmessage) this.onmessage(event);
    }
    postMessage(data) {
      if (this.ready) this.tell(this.inner, data);
      else this.waiting.push(data);
    }
    terminate() {}
  };
}
