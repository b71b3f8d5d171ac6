package pipenet

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestListener_ConnectsRejectsAndFreezes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := Listen("here")
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
			}
		}()
		c, err := l.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		echo := make([]byte, 5)
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, echo); err != nil || string(echo) != "hello" {
			t.Errorf("%q, %v", echo, err)
		}

		l.Freeze()
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Errorf("a frozen host refuses: %v", err)
		}
		began := time.Now()
		time.AfterFunc(time.Hour, func() { _ = c.Close() })
		if n, err := c.Read(echo); n > 0 || err == nil || time.Since(began) != time.Hour {
			t.Errorf("a frozen host said %d bytes, %v after %v", n, err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := l.Dial(ctx); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a frozen host: %v", err)
		}
		_ = l.Close()
		var dial *net.OpError
		if _, err := l.Dial(t.Context()); !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &dial) || dial.Op != "dial" {
			t.Errorf("a closed listener: %v", err)
		}
	})
}
