// Browsers start no worker of a page that was opened from a disk. The search then runs in a hidden frame of the page.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      const inside = frame.contentWindow
      inside.document.open()
      inside.postMessage = data => this.onmessage && this.onmessage(new MessageEvent("message", { data }))
      this.frame = frame
      this.loaded = new Promise(resolve => (inside.ready = resolve))
      inside.document.write(`<script src="${url}" onload="ready()"></script>`)
      inside.document.close()
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
