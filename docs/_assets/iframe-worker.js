// Browsers start no worker from a page on the disk. There, this runs the worker of the search in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.body.appendChild(document.createElement("iframe"))
      this.frame.hidden = true
      this.inside = this.frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const pageLoaded = new Promise(done => document.readyState === "complete" ? done() : addEventListener("load", done))
      this.loaded = pageLoaded.then(() => this.start(url))
    }

    start(url) {
      return new Promise(done => {
        const script = this.inside.document.createElement("script")
        script.onload = done
        script.src = url
        this.inside.document.body.append(script)
      })
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
