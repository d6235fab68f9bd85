// Search in pages opened from a folder. Browsers start no worker for such pages: its script runs in a hidden frame instead.
if (location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement('iframe')
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent('message', { data }))
      this.inside.importScripts = () => {}
      this.ready = new Promise((resolve, reject) => {
        const script = this.inside.document.createElement('script')
        script.onload = resolve
        script.onerror = reject
        script.src = url
        this.inside.document.body.append(script)
      })
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent('message', { data })))
    }
    terminate() {}
  }
}
