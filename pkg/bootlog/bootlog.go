// Package bootlog implements a slog handler between hive and the actual handler. It records each start hook that hive
// reports, so that a table can show the duration of the start, and lowers the level of hive's messages about jobs.
//
// The root logger must exist before hive builds any object, and the table only afterwards. So the handler fills a
// [Recorder], and the owner of the table empties it when the table is ready.
package bootlog

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Message and attribute keys of hive v1. A test starts a hive and fails when they change.
const (
	hookExecuted = "Start hook executed"
	functionKey  = "function" // "name (file:line) (module)"
	detailKey    = "detail"   // the job that a job hook starts
	durationKey  = "duration"
)

// chatter holds hive's Info messages about jobs that start and end at run time. They are lowered to Debug.
var chatter = map[string]bool{"Job started": true, "Job stopped": true}

// Hook describes a start hook that has run.
type Hook struct {
	Name     string // function and its source position
	Detail   string // what the hook started; may be empty
	Module   string // full module id; empty when the hook belongs to no module
	Start    time.Time
	Duration time.Duration
}

// Recorder keeps hooks until [Recorder.Take] returns them.
type Recorder struct {
	mu     sync.Mutex
	hooks  []Hook
	signal chan struct{} // holds one token when hooks is not empty
}

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder { return &Recorder{signal: make(chan struct{}, 1)} }

// Recorded returns a channel that receives when there are hooks to take.
func (r *Recorder) Recorded() <-chan struct{} { return r.signal }

// Take returns the hooks recorded since the last call, in the order in which they ran.
func (r *Recorder) Take() []Hook {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.hooks
	r.hooks = nil
	return taken
}

func (r *Recorder) record(h Hook) {
	r.mu.Lock()
	r.hooks = append(r.hooks, h)
	r.mu.Unlock()
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

// handler forwards records to the next handler. A logger with hive's "function" attribute is enabled for Debug as well,
// because hive reports quick hooks at that level.
type handler struct {
	slog.Handler
	recorder *Recorder
	function string
	detail   string
}

// NewHandler wraps next.
func NewHandler(next slog.Handler, recorder *Recorder) slog.Handler {
	return handler{Handler: next, recorder: recorder}
}

// Enabled implements slog.Handler.
func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.function != "" || h.Handler.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if h.function != "" && r.Message == hookExecuted {
		h.recorder.record(h.hook(r))
	}
	if chatter[r.Message] {
		r.Level = slog.LevelDebug
	}
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.Handler = h.Handler.WithAttrs(attrs)
	for _, a := range attrs {
		switch a.Key {
		case functionKey:
			h.function = a.Value.String()
		case detailKey:
			h.detail = a.Value.String()
		}
	}
	return h
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	return h
}

func (h handler) hook(r slog.Record) Hook {
	name, module := splitModule(h.function)
	hook := Hook{Name: name, Module: module, Detail: h.detail}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == durationKey && a.Value.Kind() == slog.KindDuration {
			hook.Duration = a.Value.Duration()
		}
		return true
	})
	hook.Start = r.Time.Add(-hook.Duration)
	return hook
}

// splitModule splits "name (file:line) (module)". Both parentheses may be missing; the one with a colon is a source
// position.
func splitModule(function string) (name, module string) {
	open := strings.LastIndex(function, " (")
	if open < 0 || !strings.HasSuffix(function, ")") {
		return function, ""
	}
	last := function[open+2 : len(function)-1]
	if strings.Contains(last, ":") {
		return function, ""
	}
	return function[:open], last
}
