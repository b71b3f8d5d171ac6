package kubeapi

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

const gatherInterval = 100 * time.Millisecond

// begun returns a connection that collects, as after the start of the body.
func begun(t *testing.T, conn net.Conn, drained func()) *gatheredConn {
	t.Helper()
	g := gatheringOf(Gathering(t.Context(), gatherInterval, drained))
	c, ok := g.over(conn).(*gatheredConn)
	if !ok {
		t.Fatal("no gathered connection")
	}
	t.Cleanup(func() { _ = c.Close() })
	g.begin()
	return c
}

// TestGathering_ReadsOnceAnInterval: bytes that the reader waits for are read immediately, and the bytes of the following interval together at its end.
// drained is called before each wait.
func TestGathering_ReadsOnceAnInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		drained := 0
		c := begun(t, ours, func() { drained++ })
		began := time.Now()
		sent := make(chan byte, 200)
		go func() { // a byte every 10 ms
			for range 100 {
				time.Sleep(10 * time.Millisecond)
				sent <- 1
			}
			time.Sleep(time.Second)
			sent <- 99
		}()
		go func() { // a socket would buffer them
			for b := range sent {
				all := []byte{b}
				for len(sent) > 0 {
					all = append(all, <-sent)
				}
				if _, err := theirs.Write(all); err != nil {
					return
				}
			}
		}()
		defer close(sent)
		waits := map[time.Duration]bool{}
		p := make([]byte, 1)
		for i := range 101 {
			if _, err := io.ReadFull(c, p); err != nil {
				t.Fatal(err)
			}
			if i == 0 && time.Since(began) != 10*time.Millisecond {
				t.Errorf("the first came after %v", time.Since(began))
			}
			if i == 100 && p[0] != 99 {
				t.Errorf("the last is %d", p[0])
			}
			waits[time.Since(began).Truncate(gatherInterval)] = true
		}
		if len(waits) > 14 || drained > 14 || drained < len(waits) {
			t.Errorf("read at %d times, and %d pauses", len(waits), drained)
		}
		if since := time.Since(began); since > 2100*time.Millisecond {
			t.Errorf("one after a pause was held back until %v", since)
		}
		time.AfterFunc(gatherInterval/5, func() { _ = c.Close() })
		last := time.Now()
		if _, err := c.Read(p); err == nil || time.Since(last) != gatherInterval/5 {
			t.Errorf("closed while it gathers: %v after %v", err, time.Since(last))
		}
	})
}

// TestGathering_NotBeforeTheBody: before the body bytes are not collected, because a handshake needs round trips.
func TestGathering_NotBeforeTheBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		g := gatheringOf(Gathering(t.Context(), gatherInterval, func() { t.Error("drained") }))
		c := g.over(ours)
		defer c.Close()
		go func() {
			for range 10 {
				time.Sleep(time.Millisecond)
				_, _ = theirs.Write([]byte("x"))
			}
		}()
		began := time.Now()
		if _, err := io.ReadFull(c, make([]byte, 10)); err != nil || time.Since(began) != 10*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestGathering_OnlyIfRequested(t *testing.T) {
	t.Parallel()
	if g := gatheringOf(t.Context()); g != nil {
		t.Error("a request gathers that shall not")
	}
	gatheringOf(t.Context()).begin() // has no effect
}

// sockets returns the two ends of a TCP connection.
func sockets(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if ours, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if theirs, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return ours, theirs
}

// lowWaterOf returns the low-water mark in the kernel.
func lowWaterOf(t *testing.T, l *lowWater) (mark int) {
	t.Helper()
	var err error
	if rawErr := l.raw.Control(func(fd uintptr) { mark, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT) }); rawErr != nil || err != nil {
		t.Fatal(rawErr, err)
	}
	return mark
}

// far is after the end of any test.
func far() time.Time { return time.Now().Add(time.Hour) }

func TestLowWater_WakesForEnoughDataOrEOF(t *testing.T) {
	t.Parallel()
	ours, theirs := sockets(t)
	c := begun(t, ours, nil)
	l, ok := c.arrivals.(*lowWater)
	if !ok {
		t.Fatalf("a socket is read by %T", c.arrivals)
	}
	write := func(text string) {
		t.Helper()
		if _, err := theirs.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	p := make([]byte, 100)
	expect := func(what, want string, n int, err error) {
		t.Helper()
		if string(p[:n]) != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", what, p[:n], err, want)
		}
	}
	if n, err := l.arrived(p); n != 0 || err != nil {
		t.Errorf("before anything: %d, %v", n, err)
	}
	write("a")
	n, err := l.wait(p)
	expect("the first", "a", n, err)
	if n, err := l.gather(p, time.Now().Add(gatherInterval)); n != 0 || err != nil || lowWaterOf(t, l) == 1 {
		t.Errorf("gathered %d, %v; the mark is %d", n, err, lowWaterOf(t, l))
	}
	write("bc")
	n, err = l.gather(p, time.Now().Add(gatherInterval))
	expect("gathered", "bc", n, err)
	write("d")
	n, err = l.wait(p)
	expect("after a pause", "d", n, err)
	if mark := lowWaterOf(t, l); mark != 1 {
		t.Errorf("who waits has a mark of %d", mark)
	}

	much := bytes.Repeat([]byte("x"), 4*muchData)
	go func() { _, _ = theirs.Write(much); _ = theirs.Close() }()
	for read := 0; read < len(much); read += n { // no read waits for the deadline
		if n, err = l.gather(c.buffer, far()); err != nil || n == 0 {
			t.Fatalf("%d bytes after %d, %v", n, read, err)
		}
		for more, err := l.arrived(c.buffer); more > 0 && err == nil; more, err = l.arrived(c.buffer) {
			read += more
		}
	}
	if n, err := l.gather(p, far()); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %d, %v", n, err)
	}
}

func TestLowWater_CloseEndsRead(t *testing.T) {
	t.Parallel()
	ours, _ := sockets(t)
	c := begun(t, ours, nil)
	time.AfterFunc(gatherInterval, func() { _ = c.Close() })
	if n, err := c.gather(c.buffer, far()); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %d, %v", n, err)
	}
}
