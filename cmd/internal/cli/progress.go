package cli

import (
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progressAfter is how long a thing may take before a person wants to see it move.
const progressAfter = time.Second

// Progress shows how far a transfer or a step is, on a terminal only and only once it takes over a second. Safe for concurrent use; a
// nil Progress is fine.
type Progress struct {
	mu    sync.Mutex
	bar   *progressbar.ProgressBar // guarded by mu; nil without a terminal
	begun time.Time
	shown bool // guarded by mu
	done  int64
	now   func() time.Time
}

// Progress starts one for total bytes; -1 if the total is not known. Call [Progress.Done] at the end.
func (t *Terminal) Progress(what string, total int64) *Progress {
	p := &Progress{now: time.Now, begun: time.Now()}
	if t.ErrTTY && !t.JSON {
		p.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(t.Err), progressbar.OptionSetDescription(Clean(what)),
			progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true), progressbar.OptionSetWidth(24),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetPredictTime(total > 0), progressbar.OptionSetRenderBlankState(false))
	}
	return p
}

// Add tells of n more bytes.
func (p *Progress) Add(n int64) {
	if p == nil || p.bar == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	if p.shown || p.now().Sub(p.begun) >= progressAfter {
		p.shown = true
		_ = p.bar.Set64(p.done) // a broken terminal must not break the transfer
	}
}

// Write counts p's bytes, so that a Progress can stand behind io.TeeReader or io.MultiWriter.
func (p *Progress) Write(b []byte) (int, error) {
	p.Add(int64(len(b)))
	return len(b), nil
}

// Total corrects the total, for what learns it late.
func (p *Progress) Total(n int64) {
	if p == nil || p.bar == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar.ChangeMax64(n)
}

// Done clears the bar. It may be called twice.
func (p *Progress) Done() {
	if p == nil || p.bar == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		_ = p.bar.Exit()
		_ = p.bar.Clear()
	}
	p.shown, p.bar = false, nil
}
