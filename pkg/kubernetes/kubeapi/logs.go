package kubeapi

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// LogTo makes client-go log to logger. The setting is global to the process, so only a main function calls it. Errors of client-go are also returned as
// errors, in a row or in the health. So its error messages become warnings, each at most once a minute, and all other messages become debug messages.
func LogTo(logger *slog.Logger) {
	klog.SetSlogLogger(slog.New(newQuieter(logger.Handler())))
}

const (
	repeatAfter  = time.Minute
	mostMessages = 1000 // number of remembered messages
)

// quieter is a handler that lowers levels.
type quieter struct {
	slog.Handler
	of     string // attributes of this logger, which distinguish messages
	recent *recentMessages
}

type recentMessages struct {
	mu   sync.Mutex
	last map[string]time.Time // by message and attributes
}

func newQuieter(next slog.Handler) quieter {
	return quieter{Handler: next, recent: &recentMessages{last: map[string]time.Time{}}}
}

// Enabled implements slog.Handler.
func (q quieter) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || q.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements slog.Handler.
func (q quieter) Handle(ctx context.Context, r slog.Record) error {
	level := slog.LevelDebug
	if r.Level >= slog.LevelWarn && q.recent.first(q.key(r), r.Time) {
		level = slog.LevelWarn
	}
	if !q.Handler.Enabled(ctx, level) {
		return nil
	}
	r.Level = level
	return q.Handler.Handle(ctx, r)
}

// key identifies a message. The error is not part of it, because its text may differ every time.
func (q quieter) key(r slog.Record) string {
	var b strings.Builder
	b.WriteString(q.of + r.Message)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != "err" {
			fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		}
		return true
	})
	return b.String()
}

// WithAttrs implements slog.Handler.
func (q quieter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quieter{q.Handler.WithAttrs(attrs), q.of + fmt.Sprint(attrs), q.recent}
}

// WithGroup implements slog.Handler.
func (q quieter) WithGroup(name string) slog.Handler {
	return quieter{q.Handler.WithGroup(name), q.of + name + ".", q.recent}
}

// first reports whether a message was not seen recently.
func (s *recentMessages) first(key string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, found := s.last[key]; found && now.Sub(last) < repeatAfter {
		return false
	}
	if len(s.last) >= mostMessages {
		clear(s.last)
	}
	s.last[key] = now
	return true
}
