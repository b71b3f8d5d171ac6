package kubeapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestQuieter(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	handler := newQuieter(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo}))
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	emit := func(h slog.Handler, after time.Duration, level slog.Level, message, kind string) {
		if !h.Enabled(t.Context(), level) {
			return
		}
		r := slog.NewRecord(at.Add(after), level, message, 0)
		r.AddAttrs(slog.String("type", kind), slog.Any("err", errors.New(after.String())))
		if err := h.Handle(context.Background(), r); err != nil {
			t.Error(err)
		}
	}
	emit(handler, 0, slog.LevelError, "Failed to watch", "node")
	emit(handler, time.Second, slog.LevelError, "Failed to watch", "node") // a repetition
	emit(handler, 2*time.Second, slog.LevelError, "Failed to watch", "pod")
	emit(handler, 3*time.Second, slog.LevelInfo, "Chatter", "pod") // neither warning nor error
	emit(handler.WithAttrs([]slog.Attr{slog.String("logger", "x")}), 4*time.Second, slog.LevelWarn, "Failed to watch", "pod")
	emit(handler, 61*time.Second, slog.LevelError, "Failed to watch", "node")
	if got := strings.Count(out.String(), "level=WARN"); got != 4 || strings.Count(out.String(), "\n") != 4 {
		t.Errorf("%d warnings, want 4 and nothing else:\n%s", got, &out)
	}
	for i := range 3 * mostMessages {
		emit(handler, 0, slog.LevelWarn, fmt.Sprint(i), "")
	}
	if n := len(handler.recent.last); n > mostMessages {
		t.Errorf("%d messages are remembered", n)
	}
}
