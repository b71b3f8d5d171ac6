package maps

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLogFirst_RepeatedErrors_AreLoggedOnce: the next error after a success is logged again.
func TestLogFirst_RepeatedErrors_AreLoggedOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var result error
	s := &store{params: params{Log: slog.New(slog.NewTextHandler(&out, nil))}}
	next := s.logFirst(func(context.Context) error { return result })
	for i, c := range []struct {
		result error
		lines  int
	}{{nil, 0}, {errors.New("not mounted"), 1}, {errors.New("not mounted"), 1}, {nil, 1}, {errors.New("not mounted"), 2}} {
		result = c.result
		require.Equal(t, result, next(t.Context()))
		require.Equal(t, c.lines, bytes.Count(out.Bytes(), []byte("not mounted")), "call %d", i)
	}
}
