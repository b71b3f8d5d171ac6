package pathtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/icmpecho"
)

// sockets implements [kernel].
type sockets struct {
	pinger *icmpecho.Pinger
	icmpecho.Listener
}

func newKernel() kernel { return &sockets{pinger: icmpecho.NewWhole()} }

// Open implements [kernel].
func (s *sockets) Open() { s.pinger.Open(); s.Listener.Open() }

// Close implements [kernel].
func (s *sockets) Close() { s.pinger.Close(); s.Listener.Close() }

// Echo implements [kernel].
func (s *sockets) Echo(ctx context.Context, r icmpecho.Request) (time.Duration, error) {
	return s.pinger.Echo(ctx, r)
}

// uncompleted lets the devices of the underlay complete the checksums of the packets that a socket sends into the tunnel.
func uncompleted(_, _ string, conn syscall.RawConn) error {
	var failed error
	err := conn.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, bpf.OverlayUncompleted)
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("set the priority of a socket: %w", err)
	}
	return nil
}

// maxHead limits the bytes that are read before the body. The peer may be malicious.
const maxHead = 4 << 10

// Fetch implements [kernel]. The connection is closed when the context ends or the reply is complete.
func (*sockets) Fetch(ctx context.Context, to netip.AddrPort, bytes int, by checksums) (got int, err error) {
	dialer := net.Dialer{KeepAlive: -1}
	if by == byUnderlay {
		dialer.Control = uncompleted
	}
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return 0, icmpecho.Local(err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := fmt.Fprintf(conn, "GET /hello?bytes=%d HTTP/1.1\r\nHost: %s\r\nUser-Agent: waggle\r\nConnection: close\r\n\r\n", bytes, to); err != nil {
		return 0, err
	}
	answer, err := http.ReadResponse(bufio.NewReaderSize(io.LimitReader(conn, int64(maxHead+bytes)), 512), nil)
	if err != nil {
		return 0, fmt.Errorf("read the answer: %w", err)
	}
	defer answer.Body.Close()
	n, err := io.Copy(io.Discard, io.LimitReader(answer.Body, int64(bytes)))
	if errors.Is(err, io.ErrUnexpectedEOF) && ctx.Err() == nil { // the server closed the connection early, which is not a loss
		err = nil
	}
	return int(n), err
}
